"""The SLURM scripts under a real slurmctld and slurmd on this machine."""
