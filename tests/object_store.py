"""The object-store server of the tests: python -m tests.object_store PORT FOLDER; Google's interface on loopback."""

import contextlib
import http.server
import importlib.util
import os
import socket
import subprocess
import sys
import threading
import time
import urllib.request

BUCKET = "bucket"
S3_IS_HERE = all(importlib.util.find_spec(name) for name in ("s3fs", "moto", "flask"))
IS_HERE = all(importlib.util.find_spec(name) for name in ("gcsfs", "gcp_storage_emulator"))


def free_port():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


def wait_for(address):
    for _ in range(600):
        with contextlib.suppress(OSError), urllib.request.urlopen(address, timeout=5):
            return
        time.sleep(0.05)
    raise AssertionError("the server did not start")


@contextlib.contextmanager
def s3():
    """The environment of a server of Amazon's interface with a bucket."""
    address = f"http://127.0.0.1:{free_port()}"
    command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", address.rpartition(":")[2]]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        wait_for(address)
        urllib.request.urlopen(urllib.request.Request(f"{address}/{BUCKET}", method="PUT")).close()
        yield {"AWS_ENDPOINT_URL": address, "AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "b"}
    finally:
        process.kill()
        process.wait()


class Server:
    """A server in a process of its own, which keeps its objects when it is stopped and started again."""

    def __init__(self, folder):
        self.port, self.folder, self._process = free_port(), folder, None
        address = f"http://127.0.0.1:{self.port}"
        self.environment = {
            "STORAGE_EMULATOR_HOST": address,
            "TENSORSTORE_GCS_HTTP_URL": address,
            "GOOGLE_AUTH_DISABLED": "1",
            "GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT": "false",
        }
        self.start()

    def start(self):
        command = [sys.executable, "-m", "tests.object_store", str(self.port), str(self.folder)]
        self._process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        wait_for(f"http://127.0.0.1:{self.port}/")

    def wipe(self):
        urllib.request.urlopen(f"{self.environment['STORAGE_EMULATOR_HOST']}/wipe?keep-buckets=true").close()

    def stop(self):
        self._process.kill()
        self._process.wait()


def main(port, folder):
    from gcp_storage_emulator import server
    from gcp_storage_emulator.exceptions import NotFound
    from gcp_storage_emulator.handlers import objects

    download, post = objects.download, server.RequestHandler.do_POST
    handle, lock = server.Router.handle, threading.Lock()

    class ThreadingServer(http.server.ThreadingHTTPServer):
        """A client that connects and sends nothing keeps no other waiting, nor do many that connect at once."""

        request_queue_size = 128

    def handle_alone(router, method):
        """What the server stores has no locks of its own."""
        with lock:
            handle(router, method)

    def download_with_generation(request, response, storage, *args, **kwargs):
        """The server does not name the generation, without which TensorStore writes no object a second time."""
        names = request.params["bucket_name"], request.params["object_id"]
        with contextlib.suppress(NotFound):
            response["x-goog-generation"] = storage.get_file_obj(*names)["generation"]
        download(request, response, storage, *args, **kwargs)

    def do_POST(handler):
        """The server has no moveTo. Its answer 501 makes gcsfs try for half a minute before it copies and deletes."""
        handler.send_error(405) if "/moveTo/" in handler.path else post(handler)

    objects.download, server.RequestHandler.do_POST = download_with_generation, do_POST
    server.server.HTTPServer, server.Router.handle, server.RequestHandler.timeout = ThreadingServer, handle_alone, 60
    os.chdir(folder)
    server.create_server("127.0.0.1", int(port), in_memory=False, default_bucket=BUCKET, data_dir=folder).start()
    while True:
        time.sleep(3600)


if __name__ == "__main__":
    main(*sys.argv[1:])
