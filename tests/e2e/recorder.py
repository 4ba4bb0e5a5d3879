"""A transparent proxy between a client and the server that keeps what went over it."""

import http.client
import http.server
import json
import threading
import time
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

CONTENT = (b"content_block_delta", b'.delta"', b'"delta":{"content"', b'"delta":{"reasoning')
HOP = {"connection", "keep-alive", "transfer-encoding", "proxy-connection", "te", "trailer", "upgrade"}


@dataclass
class Exchange:
    """One request and its answer; `first_s` is the time from the request to the first token in a stream, 0 if none."""

    method: str
    path: str
    body: Any
    status: int = 0
    first_s: float = 0.0
    answer: bytes = b""


class Recorder:
    """Listens on `base`, forwards to `upstream`, and keeps every exchange in order of arrival."""

    def __init__(self, upstream: str):
        self.upstream = urlsplit(upstream).netloc
        self.exchanges: list[Exchange] = []
        recorder = self

        class Handler(_Handler):
            owner = recorder

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.base = f"http://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()

    def generations(self) -> list[Exchange]:
        """The exchanges that asked for an answer of the model."""
        return [e for e in self.exchanges if e.method == "POST" and "count_tokens" not in e.path]

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


class _Handler(http.server.BaseHTTPRequestHandler):
    owner: Recorder

    def log_message(self, format: str, *args: object) -> None:
        pass

    def _forward(self) -> None:
        body = self.rfile.read(int(self.headers.get("content-length", 0)))
        exchange = Exchange(self.command, self.path, _json(body))
        self.owner.exchanges.append(exchange)
        connection = http.client.HTTPConnection(self.owner.upstream, timeout=300)
        headers = {k: v for k, v in self.headers.items() if k.lower() not in HOP | {"host"}}
        try:
            began = time.monotonic()
            connection.request(self.command, self.path, body or None, headers)
            self._relay(connection.getresponse(), exchange, began)
        except (BrokenPipeError, ConnectionResetError):
            self.close_connection = True
        finally:
            connection.close()

    def _relay(self, response: http.client.HTTPResponse, exchange: Exchange, began: float) -> None:
        exchange.status = response.status
        self.send_response_only(response.status)
        for name, value in response.getheaders():
            if name.lower() not in HOP:
                self.send_header(name, value)
        self.send_header("connection", "close")
        self.end_headers()
        self.close_connection = True
        while piece := response.read1(65536):
            exchange.answer += piece
            if not exchange.first_s and any(mark in exchange.answer for mark in CONTENT):
                exchange.first_s = time.monotonic() - began
            self.wfile.write(piece)

    do_GET = do_HEAD = do_POST = do_OPTIONS = _forward


def _json(body: bytes) -> Any:
    try:
        return json.loads(body)
    except ValueError:
        return None


def tool_results(body: Any) -> list[str]:
    """The texts of the tool results in a request of any dialect."""
    found: list[str] = []
    for message in body.get("messages", []):
        if message.get("role") == "tool":
            found.append(_text(message["content"]))
        blocks = message["content"] if isinstance(message.get("content"), list) else []
        found += [_text(block["content"]) for block in blocks if block.get("type") == "tool_result"]
    items = body.get("input", []) if isinstance(body.get("input"), list) else []
    return found + [_text(item["output"]) for item in items if item.get("type") == "function_call_output"]


def _text(content: Any) -> str:
    if isinstance(content, list):
        return "".join(part.get("text", "") for part in content)
    return str(content)
