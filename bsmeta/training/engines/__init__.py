"""The engines: plain torch, FSDP2 and DeepSpeed, with one interface and one layout of files."""
