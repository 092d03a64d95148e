"""A bucket on a local S3 server (moto) that can misbehave."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from typing import Any

from botocore.session import Session
from moto.server import DomainDispatcherApplication, create_backend_app
from werkzeug.serving import WSGIRequestHandler, make_server

from tests.data.bucket_server import BUCKET, RUN_PREFIX, Environ, Fault


class _Quiet(WSGIRequestHandler):
    protocol_version = "HTTP/1.1"

    def log(self, *_: object) -> None:
        """Says nothing."""


class S3Server:
    """moto's server after the faults of a test; see `BucketServer`.

    Args:
        certificate: Files of a certificate for `localhost` and its key; without them, the server
            does not speak TLS.
    """

    run_url = f"s3://{BUCKET}/{RUN_PREFIX}"

    def __init__(self, certificate: tuple[str, str] | None = None) -> None:
        self._app = DomainDispatcherApplication(create_backend_app)
        self.faults: list[Fault] = []
        self.requests: list[tuple[str, str, str]] = []
        self._server = make_server(
            "127.0.0.1",
            0,
            self._answer,
            threaded=True,
            request_handler=_Quiet,
            ssl_context=certificate,
        )
        origin = "https://localhost" if certificate else "http://127.0.0.1"
        self.endpoint = f"{origin}:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()

    def connect(self, key_id: str | None = None, secret: str | None = None) -> None:
        """Creates the bucket; without a key, with the credentials of the environment."""
        self.client = Session().create_client(
            "s3",
            region_name="us-east-1",
            endpoint_url=self.endpoint,
            aws_access_key_id=key_id,
            aws_secret_access_key=secret,
        )
        self.client.create_bucket(Bucket=BUCKET)

    def put(self, files: dict[str, bytes]) -> None:
        """Stores objects."""
        for key, content in files.items():
            self.client.put_object(Bucket=BUCKET, Key=key, Body=content)

    def remove(self, key: str) -> None:
        """Deletes an object."""
        self.client.delete_object(Bucket=BUCKET, Key=key)

    def list_keys(self) -> list[str]:
        """Lists all objects in order."""
        listing = self.client.list_objects_v2(Bucket=BUCKET).get("Contents", [])
        return [entry["Key"] for entry in listing]

    def list_unfinished(self) -> list[str]:
        """Lists the objects of unfinished uploads in parts."""
        uploads = self.client.list_multipart_uploads(Bucket=BUCKET).get("Uploads", [])
        return [upload["Key"] for upload in uploads]

    def close(self) -> None:
        """Ends it."""
        self._server.shutdown()
        self._server.server_close()

    def _answer(self, environ: Environ, start_response: Callable[..., Any]) -> Iterable[bytes]:
        query = f"{environ['PATH_INFO']}?{environ['QUERY_STRING']}"
        self.requests.append((environ["REQUEST_METHOD"], query, environ.get("HTTP_RANGE", "")))
        for fault in list(self.faults):
            answer = fault(environ)
            if isinstance(answer, tuple):
                status, headers, body = answer
                given = {"Content-Length": str(len(body)), **headers}
                start_response(f"{status} -", list(given.items()))
                return [] if environ["REQUEST_METHOD"] == "HEAD" else [body]
            if isinstance(answer, int):
                return [b"".join(self._app(environ, start_response))[:answer]]
        return self._app(environ, start_response)
