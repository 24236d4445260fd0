"""A web server in a sandbox, reached through a port of this machine."""

from __future__ import annotations

import urllib.request

from space import Sandbox
from space.model.errors import NotFound

SERVER = """
import http.server
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.send_header("content-length", "6")
        self.end_headers()
        self.wfile.write(b"hello\\n")
http.server.HTTPServer(("127.0.0.1", 8000), Handler).serve_forever()
"""


def main() -> None:
    with Sandbox.create(ttl_seconds=600) as sandbox:
        server = sandbox.start(["python3", "-c", SERVER])
        until_it_listens(sandbox, 8000)
        with sandbox.forward(0, 8000) as forward:
            host, port = forward.address
            with urllib.request.urlopen(f"http://{host}:{port}/") as answer:
                print(answer.status, answer.read())
        server.kill()
        print("ended by signal", server.wait().signal)


def until_it_listens(sandbox: Sandbox, port: int) -> None:
    while True:
        try:
            sandbox.connect_port(port).close()
        except NotFound:
            sandbox.run(["sleep", "0.1"])
        else:
            return


if __name__ == "__main__":
    main()
