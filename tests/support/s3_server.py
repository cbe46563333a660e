"""An S3 server on loopback (moto), which names the type of its checksums, as S3 does and moto does not.

The times of its listings have milliseconds, as those of MinIO and Ceph.
"""

import logging
import threading

import boto3
from moto.server import DomainDispatcherApplication, create_backend_app
from werkzeug.serving import make_server


class S3Server:
    """Serves the bucket ``bucket``; ``composite`` has the keys whose checksum is one of parts.

    cuts: how many objects are sent by half first. status: the answer to all requests, without a body.
    """

    def __init__(self):
        self.composite = set()
        self.untyped = set()
        self.cuts = 0
        self.status = ""

    def __enter__(self):
        logging.getLogger("werkzeug").setLevel(logging.ERROR)
        self._server = make_server("127.0.0.1", 0, self._typed, threaded=True)
        self._app = DomainDispatcherApplication(create_backend_app)
        self._thread = threading.Thread(target=self._server.serve_forever)
        self._thread.start()
        self.client = boto3.client("s3", endpoint_url=self.url)
        self.client.create_bucket(Bucket="bucket")
        return self

    def __exit__(self, *_):
        self.client.close()
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    @property
    def url(self):
        return f"http://127.0.0.1:{self._server.server_port}"

    def _typed(self, environ, start):
        if self.status:
            start(self.status, [("Content-Length", "0")])
            return [b""]
        key = environ["PATH_INFO"].partition("/bucket/")[2]

        def typed(status, headers, *rest):
            if key and key not in self.untyped:
                kind = "COMPOSITE" if key in self.composite else "FULL_OBJECT"
                headers = [*headers, ("x-amz-checksum-type", kind)]
            return start(status, headers, *rest)

        answer = self._app(environ, typed)
        if key and self.cuts and environ["REQUEST_METHOD"] == "GET":
            self.cuts -= 1
            content = b"".join(answer)
            return [content[: len(content) // 2]]
        if key:
            return answer
        return [piece.replace(b".000Z</LastModified>", b".367Z</LastModified>") for piece in answer]
