"""Secrets are planted wherever a user has them, and no program may print or write one."""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from subprocess import CompletedProcess

import pytest
import yaml

from tests.annotate.helpers import some_pages, write_pages
from tests.canary import ADDRESSES, CONFIGURED, ENVIRONMENT, FILES, find_secrets
from tests.conftest import REPOSITORY, run_warm
from tests.data.azure_server import ACCOUNT, AzureServer, refuse
from tests.data.bucket_server import BUCKET, SECRET, failing
from tests.data.file_server import FileServer, Request
from tests.data.s3_server import S3Server

LEAKING = Path(__file__).with_name("leaking_task.py")
RAWPAGES = REPOSITORY / "examples/rawpages"
CONTENT = bytes(range(256)) * 40
TRACKERS = f"trackers=[{','.join(filter(find_spec, ('tensorboard', 'wandb', 'trackio')))}]"
STEPS = ("max_train_steps=4", "num_warmup_steps=1", "gradient_accumulation_steps=1")

Program = Callable[..., CompletedProcess[str]]


def secrets_of_the_configuration() -> list[str]:
    """Returns secrets that a user might put anywhere in a configuration."""
    user, query = CONFIGURED["the user of a web address"], CONFIGURED["the query of a web address"]
    return [
        CONFIGURED["a token by its form"],
        f"password={CONFIGURED['a value under a name']}",
        f"https://{user}@host.invalid/model?X-Goog-Signature={query}",
        f"s3://key:{CONFIGURED['the user of a bucket']}@bucket/data-?.jsonl",
        *(f"${{oc.env:{name}}}" for name in ENVIRONMENT),
    ]


@pytest.fixture
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A home folder with the credentials that libraries read from files."""
    home = tmp_path_factory.mktemp("home")
    (home / ".aws").mkdir()
    (home / ".aws/credentials").write_text(
        "[lab]\naws_access_key_id = AKIAIOSFODNN7EXAMPLE\n"
        f"aws_secret_access_key = {FILES['the credentials file of AWS']}\n"
    )
    netrc = f"machine 127.0.0.1 login me password {FILES['the password of .netrc']}\n"
    (home / ".netrc").write_text(netrc)
    (home / ".netrc").chmod(0o600)
    (home / "hub").mkdir()
    (home / "hub/token").write_text(FILES["the token file of the Hub"])
    return home


@pytest.fixture
def program(home: Path, tmp_path: Path) -> Program:
    """Runs a program with all planted variables: `program("module or script", "key=value")`."""

    def run(target: str | Path, *arguments: str, **environment: str) -> CompletedProcess[str]:
        start = [str(target)] if isinstance(target, Path) else ["-m", target]
        variables = {
            **ENVIRONMENT,
            "PLANTED": json.dumps([*ENVIRONMENT]),
            "HOME": str(home),
            "HF_HOME": str(home / "hub"),
            "NO_PROXY": "127.0.0.1",
            "WANDB_MODE": "offline",
            **environment,
        }
        done = run_warm([sys.executable, *start, *arguments], REPOSITORY, **variables)
        assert find_secrets(tmp_path, done.stdout, done.stderr) == {}
        return done

    return run


def write_configuration(folder: Path, name: str, **values: object) -> tuple[str, ...]:
    """Writes a configuration with secrets; returns the options that name it."""
    folder.mkdir(exist_ok=True)
    content = {"data_config": {"exclude": secrets_of_the_configuration()}, **values}
    (folder / f"{name}.yaml").write_text(yaml.safe_dump(content))
    return "--config-dir", str(folder), "--config-name", name


@pytest.mark.parametrize("leak", ["crash", "loader", "nan"])
def test_a_failing_run_prints_and_writes_no_secret(
    program: Program, home: Path, tmp_path: Path, leak: str
) -> None:
    options = write_configuration(home / "configs", "bad", defaults=["causal_lm_config", "_self_"])
    keys = [*STEPS, f"out_dir={tmp_path}/run", TRACKERS, "save_steps=1"]
    done = program(LEAKING, *options, *keys, LEAK=leak, TRACKIO_DIR=f"{tmp_path}/trackio")
    assert done.returncode == 1
    written = {path.name for path in (tmp_path / "run").rglob("*") if path.is_file()}
    assert {
        "config.yaml",
        "status.json",
        "metrics.jsonl",
        "log-rank0.txt",
        "hparams.yml",
    } <= written
    assert ("nonfinite-step2-rank0.json" in written) == (leak == "nan")
    assert "[redacted]" in done.stdout
    assert "no answer: " in done.stderr
    status = json.loads((tmp_path / "run/status.json").read_text())
    assert status["state"] == "failed"


@pytest.mark.long
def test_a_download_prints_and_writes_no_secret(
    program: Program, home: Path, tmp_path: Path
) -> None:
    path = "/data.bin"
    query = (
        f"?X-Amz-Signature={ADDRESSES['the signature of a manifest']}"
        f"&token={ADDRESSES['the token of a manifest']}"
    )

    def busy(request: Request, content: bytes) -> bool:
        request.send(503, b"", **{"Retry-After": "0"})
        return True

    def elsewhere(request: Request, content: bytes) -> bool:
        hidden = ADDRESSES["the query of a redirect"]
        request.send(302, b"", Location=f"http://127.0.0.1:9/other?sig={hidden}")
        return True

    with FileServer({path + query: CONTENT}).running() as server:
        user = f"me:{ADDRESSES['the password of a manifest']}"
        signed = server.address.replace("//", f"//{user}@") + path + query
        mirror = server.address.replace("//", f"//{ADDRESSES['the user of a mirror']}@")
        entry = {
            "path": "data.bin", "bytes": len(CONTENT), "sha256": hashlib.sha256(CONTENT).hexdigest()
        }  # fmt: skip
        manifest = home / "manifest.json"

        def fetch(address: str, *keys: str, **changes: object) -> CompletedProcess[str]:
            content = {"files": [{**entry, "address": address, **changes}]}
            manifest.write_text(json.dumps(content))
            arguments = [f"manifest={manifest}", f"folder={tmp_path}/data", "retries=1", *keys]
            return program("bsmeta.download", *arguments)

        missing = fetch(signed.replace("data.bin", "other.bin"))
        assert missing.returncode == 2
        shown = f"{server.address}/other.bin: the server answers HTTP 404"
        assert shown in missing.stderr
        assert fetch("data.bin", f"mirror={mirror}").returncode == 2
        assert fetch(signed.replace("http://", "gopher://")).returncode == 2
        assert fetch(signed, sha256="0" * 64).returncode == 2
        server.faults = [elsewhere] * 2
        assert fetch(signed).returncode == 2
        server.faults = [busy]
        done = fetch(signed)
        assert done.returncode == 0, done.stderr
        assert "503" in done.stderr
    assert (tmp_path / "data/data.bin").read_bytes() == CONTENT


@pytest.mark.long
def test_refusals_print_no_secret(program: Program, home: Path, tmp_path: Path) -> None:
    """Messages quote wrong values; a launch file and a DeepSpeed JSON hold secrets, too."""
    options = write_configuration(home / "configs", "bad", defaults=["causal_lm_config", "_self_"])
    json_file = home / "zero.json"
    key = CONFIGURED["a key of the DeepSpeed JSON"]
    json_file.write_text(json.dumps({"wandb": {"api_key": key}, "train_batch_size": key}))
    launch = {
        "distributed_type": "DEEPSPEED",
        "env": {"PASSWORD": CONFIGURED["a key of the launch file"]},
        "password": CONFIGURED["a key of the launch file"],
        "main_process_port": CONFIGURED["a key of the launch file"],
        "deepspeed_config": {"deepspeed_config_file": str(json_file)},
    }
    (home / "launch.yaml").write_text(yaml.safe_dump(launch))
    secret = secrets_of_the_configuration()
    refused = [
        [f"accelerate_config_file={home}/launch.yaml", "check_only=true"],
        [f"data_config.train_file='{secret[2]}'"],
        # With a model of no Hub, so that the bucket is asked for, and nothing on the network.
        [
            f"data_config.train_file='{secret[3]}'",
            "+model=llama_tiny",
            f"data_config.cache_dir={tmp_path}/cache",
        ],
        ["max_train_steps=${oc.env:DB_PASS}"],
        [f"password={CONFIGURED['a value under a name']}"],
        [f"optimizer_type={CONFIGURED['a token by its form']}"],
        [f"seed={CONFIGURED['the query of a web address']}?{secret[1]}"],
    ]
    for keys in refused:
        out_dir = tmp_path / str(len([*tmp_path.iterdir()]))
        done = program("bsmeta.train", *options, f"out_dir={out_dir}", *keys)
        assert done.returncode == 2, (keys, done.stderr)
        assert "configuration error" in done.stderr


@pytest.fixture
def bucket() -> Iterator[S3Server]:
    server = S3Server()
    server.connect("AKIAIOSFODNN7EXAMPLE", SECRET)
    yield server
    server.client.close()
    server.close()


@pytest.fixture
def container() -> Iterator[AzureServer]:
    server = AzureServer()
    yield server
    server.close()


@pytest.mark.parametrize("unset", ["AZURE_STORAGE_KEY", "AZURE_STORAGE_SAS_TOKEN"])
def test_copying_blobs_prints_and_writes_no_secret(
    program: Program, tmp_path: Path, container: AzureServer, unset: str
) -> None:
    """Each of the planted credentials is used; the server refuses it after the first copy."""
    container.put({"web/000.jsonl": b'{"text": "a"}\n'})
    variables = {
        "AZURE_STORAGE_ENDPOINT": container.endpoint,
        "AZURE_STORAGE_ACCOUNT": ACCOUNT,
        unset: "",
    }
    keys = [f"data_config.train_file={container.url}/web/*", "data_config.validation_file=null"]
    keys += [f"data_config.cache_dir={tmp_path}/cache", "data_config.hub_retries=1"]
    container.statuses = [503]
    copied = program("bsmeta.data.stage", *keys, f"out={tmp_path}/copy", **variables)
    assert copied.returncode == 0, copied.stderr

    container.answers = [refuse(403, "AuthenticationFailed")]
    refused = program("bsmeta.data.stage", *keys, f"out={tmp_path}/other", **variables)
    assert refused.returncode == 2
    assert "answers HTTP 403 (AuthenticationFailed): the credentials in AZURE_" in refused.stderr


@pytest.mark.slow
def test_the_life_of_a_model_prints_and_writes_no_secret(
    program: Program, home: Path, tmp_path: Path, bucket: S3Server
) -> None:
    """Pages are annotated, and copied to a disk; a model is trained, evaluated, and generates."""
    annotated = program(
        "bsmeta.annotate", f"input={RAWPAGES}", f"output={tmp_path}/shards", "workers=1",
        "annotators=[html,url,title]",
    )  # fmt: skip
    assert annotated.returncode == 0, annotated.stderr
    pages = write_pages(home / "pages.jsonl.gz", some_pages(1))
    failed = program(
        "bsmeta.annotate", f"input={pages}", f"output={tmp_path}/failed", "workers=1",
        "annotators=[tests.leaking_annotator.Leaking]",
    )  # fmt: skip
    assert failed.returncode == 0, failed.stderr
    assert "tests.leaking_annotator.Ended: hf_" not in failed.stderr
    assert "a worker ended (exit code 1); its chunk is redone" in failed.stderr

    (shard, *_) = sorted((REPOSITORY / "examples/webdocs").glob("*.jsonl.gz"))
    bucket.put({"web/000.jsonl.gz": shard.read_bytes()})
    bucket.faults.append(failing(503, "SlowDown", 1))
    at_bucket = {"AWS_ENDPOINT_URL": bucket.endpoint, "AWS_EC2_METADATA_DISABLED": "true"}
    keys = [f"data_config.train_file=s3://{BUCKET}/web/*", "data_config.validation_file=null"]
    keys += [f"data_config.cache_dir={tmp_path}/cache", "data_config.hub_retries=1"]
    copied = program("bsmeta.data.stage", *keys, f"out={tmp_path}/copy", **at_bucket)
    assert copied.returncode == 0, copied.stderr
    bucket.faults.append(failing(403, "AccessDenied", 9, lambda _: True))
    refused = program("bsmeta.data.stage", *keys, f"out={tmp_path}/other", **at_bucket)
    assert refused.returncode == 2
    assert "answers HTTP 403 (AccessDenied)" in refused.stderr

    options = write_configuration(home / "configs", "secrets", defaults=["demo", "_self_"])
    keys = [*STEPS, f"out_dir={tmp_path}/run", "eval_steps=2", "save_steps=2", "eval_documents=2"]
    keys += ["trackers=[tensorboard]", "log_documents=true", "data_config.window_documents=8"]
    keys += ["data_config.metadata_config.max_seq_len=64", "data_config.num_workers=1"]
    trained = program("bsmeta.train", *options, *keys)
    assert trained.returncode == 0, trained.stderr
    assert "[redacted]" in (tmp_path / "run/config.yaml").read_text()

    again = ("--config-dir", f"{tmp_path}/run", "--config-name", "config")
    resumed = program("bsmeta.train", *again, "resume_from_checkpoint_dir=latest")
    assert resumed.returncode == 2
    assert "expected the value with its secret, which no run saves" in resumed.stderr

    configured = f"overrides={{data_config: {{exclude: ['{secrets_of_the_configuration()[2]}']}}}}"
    evaluated = program(
        "bsmeta.evaluate", f"checkpoint={tmp_path}/run", "max_documents=2", "windows=all_pieces",
        "bootstrap_resamples=10", configured,
    )  # fmt: skip
    assert evaluated.returncode == 0, evaluated.stderr
    assert "[redacted]" in (tmp_path / "run/evaluation/evaluation.json").read_text()
    generated = program(
        "bsmeta.generate", f"checkpoint={tmp_path}/run", "prompt='A set is'", "max_new_tokens=4",
        f"output={tmp_path}/texts.jsonl", configured,
    )  # fmt: skip
    assert generated.returncode == 0, generated.stderr
