"""Packages `bsmeta`: ranges of versions here, the exact ones that are tested in requirements.txt.

A wheel also holds the configurations, launch files, scripts and examples, under
`bsmeta/resources/`, where `bsmeta.core.files` finds them.
"""

from __future__ import annotations

import shutil
from pathlib import Path

from setuptools import find_packages, setup
from setuptools.command.build_py import build_py

ROOT = Path(__file__).parent
RESOURCES = ("hydra_configs", "deepspeed_configs", "experiments", "examples")

# Trains and evaluates language models. Lower bounds are the oldest versions with all that is used;
# upper bounds stop at the next major version of libraries whose interfaces change with it.
BASE = [
    "torch>=2.11,<3",
    "accelerate>=1.15,<2",
    "deepspeed>=0.19.8,<0.20",
    "transformers>=5.18.0,<6",
    "tokenizers>=0.23.3",
    "safetensors>=0.8.0",
    "huggingface_hub>=2,<3",
    "httpx2>=2.16,<3",
    "fsspec>=2025.3",
    "hydra-core>=1.3,<1.4",
    "omegaconf>=2.3,<2.4",
    "pydantic>=2.6.0,<3",
    "PyYAML>=6",
    "jinja2>=3.1",
    "markupsafe>=2.1.2",
    "numpy>=2,<3",
    "scipy>=1.15",
    "xxhash>=3.4.1",
    "isal>=1.7",
    "indexed_gzip>=1.10.1",
    "backports.zstd>=1.0; python_version < '3.14'",  # in the standard library from 3.14 on
    "pyarrow>=24.0.0",
    "msgspec>=0.19",
    "tiktoken>=0.9",
    "tldextract>=5.3",  # top_domain_under_public_suffix
    "python-dateutil>=2.9.0.post0",
    "filelock>=3.24",  # acquire(cancel_check=…)
    "psutil>=5.9.4",
    "rich>=13.9",
    "matplotlib>=3.9",
    "tensorboardX>=2.6.1",  # writes the files of the default tracker, without the viewer's 57 MB
    # DeepSpeed compiles its CPU communication op once, with these.
    "ninja>=1.11.1",
    "setuptools>=77.0.3",
]
EXTRAS = {
    # The reader of data_config.reader=tf. Its build for CPUs alone exists for x86 only.
    "tf": [
        "tensorflow-cpu>=2.21; python_version < '3.14' and platform_machine == 'x86_64'",
        "tensorflow>=2.21; python_version < '3.14' and platform_machine == 'aarch64'",
    ],
    # s3:// and gs://: signatures, credentials, requests of a run
    "object-stores": ["botocore>=1.36", "google-auth>=2.35,<3", "requests>=2.32.2", "urllib3>=2"],
    # tasks with a table of samples, which `datasets` stores
    # splits, metrics, the linear baseline, tables of reports
    "tables": ["datasets>=5.1.0,<6", "scikit-learn>=1.6", "pandas>=2.2.2"],
    "spelling": [
        "datasets>=5.1.0,<6",
        "rapidfuzz>=3.9",
        "codespell>=2.4",
        "symspellpy>=6.9",
        "wordfreq>=3.1",
    ],
    "entities": ["datasets>=5.1.0,<6", "ahocorasick-rs>=1.0.1", "scikit-learn>=1.6"],
    "bootleg": ["marisa-trie>=1.2"],  # entity folders of Bootleg from release 1.1 on
    "annotate": [
        "selectolax>=1.0",
        "resiliparse>=2.0,<3",
        "brotli>=1.2",
        "trafilatura>=2.0,<3",
        "lxml_html_clean>=0.4",
        "htmldate>=1.9.2",
        "pycld2>=0.42; python_version < '3.14'",
        "ahocorasick-rs>=1.0.1",
        "datasketch>=2.0,<3",  # its signatures have a named scheme since 2.0
    ],
    "gguf": ["gguf>=0.19,<1"],  # files of llama.cpp
    "lora": ["peft>=0.21,<0.22"],  # adapters
    "fast": ["gigatoken>=0.10,<0.11"],  # the fastest tokenizer backend, young
    "cluster": ["datatrove>=0.10,<0.11"],  # annotation through Slurm or Ray
    "downstream": ["lm_eval>=0.4.13,<0.5"],  # benchmarks of exported models in studies
    "trackers": ["tensorboard>=2.18", "wandb>=0.31,<1", "trackio>=0.43,<1"],
}


class BuildWithResources(build_py):
    """Puts the folders of `RESOURCES` into the wheel."""

    def run(self) -> None:
        super().run()
        if self.editable_mode:  # the checkout has them
            return
        target = Path(self.build_lib) / "bsmeta" / "resources"
        for name in RESOURCES:
            shutil.copytree(
                ROOT / name,
                target / name,
                ignore=shutil.ignore_patterns("__pycache__"),
                dirs_exist_ok=True,
            )


setup(
    name="bsmeta",
    version="0.1.0",
    description="Language models trained on text together with its metadata",
    long_description=(ROOT / "README.md").read_text(encoding="utf-8"),
    long_description_content_type="text/markdown",
    license="Apache-2.0",
    keywords=["language models", "metadata", "pretraining", "evaluation"],
    classifiers=[
        "Development Status :: 4 - Beta",
        "Intended Audience :: Science/Research",
        "Operating System :: POSIX :: Linux",
        "Programming Language :: Python :: 3.11",
        "Programming Language :: Python :: 3.12",
        "Programming Language :: Python :: 3.13",
        "Programming Language :: Python :: 3.14",
        "Topic :: Scientific/Engineering :: Artificial Intelligence",
        "Typing :: Typed",
    ],
    python_requires=">=3.11,<3.15",
    packages=find_packages(include=["bsmeta", "bsmeta.*"]),
    package_data={"bsmeta": ["py.typed", "**/*.j2", "**/*.js"]},
    entry_points={"console_scripts": ["bsmeta = bsmeta.cli:main"]},
    install_requires=BASE,
    extras_require={
        **EXTRAS,
        "all": sorted({line for lines in EXTRAS.values() for line in lines}),
    },
    cmdclass={"build_py": BuildWithResources},
)
