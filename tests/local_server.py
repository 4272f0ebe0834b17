"""A local web server that stands in for those that publish data sets and weights."""

import contextlib
import http.server
import threading
from collections.abc import Iterator, Mapping

UNREACHABLE = "http://127.0.0.1:9"  # the discard port, on which nothing listens


@contextlib.contextmanager
def serve(pages: Mapping[str, bytes | tuple[bytes, int] | None]) -> Iterator[tuple[str, list[str]]]:
    """Serve content by path; for `(content, n)` the connection breaks after n bytes, for None the reply is invalid.

    Yields the server's address, and a list to which the path of each request is appended.
    """
    requests: list[str] = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            path = self.path.partition("?")[0]
            requests.append(path)
            if path not in pages:
                self.send_error(404)
                return
            if (page := pages[path]) is None:
                self.wfile.write(b"nonsense\r\n\r\n")
                return
            content, num_sent = page if isinstance(page, tuple) else (page, len(page))
            self.send_response(200)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            with contextlib.suppress(ConnectionError):  # a client that only wants the header hangs up
                self.wfile.write(content[:num_sent])

        def log_message(self, *_: object) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}", requests
        finally:
            server.shutdown()
            thread.join()
