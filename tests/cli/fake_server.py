"""A small OpenAI-compatible server: what clients are tested against.

A reply repeats the last user message word by word. Words steer it: `slow` waits between words,
`think` thinks first, `guess` tells of guesses, `boom` is a 400, `midway` fails inside the stream,
`busy` is one 503.
"""

import json
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

MODEL = "fake-model"


class FakeServer(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128

    def __init__(self, api_key=None):
        super().__init__(("127.0.0.1", 0), _Handler)
        self.api_key = api_key
        self.inputs = None
        """What its model takes beside text, where it says so."""
        self.defaults = None
        """Its sampling defaults by llama-server's names, where it tells them."""
        self.bodies = []
        self.was_busy = set()
        self.running = 0
        self.most_running = 0
        self.cut_off = threading.Event()
        """Set when a client left in the middle of a stream."""
        self.lock = threading.Lock()

    @property
    def url(self):
        return f"http://127.0.0.1:{self.server_address[1]}"


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *args):
        pass

    def do_GET(self):
        if not self._allowed():
            return
        if self.path == "/v1/models":
            card = {"id": MODEL, "object": "model", "max_model_len": 4096, "root": "org/fake"}
            if self.server.inputs is not None:
                card["architecture"] = {"input_modalities": self.server.inputs}
            self._json(200, {"object": "list", "data": [card]})
        elif self.path.startswith("/props?") and self.server.defaults is not None:
            self._json(200, {"default_generation_settings": {"params": self.server.defaults}})
        else:
            self._fail(404, "no such route")

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if not self._allowed():
            return
        server = self.server
        with server.lock:
            server.bodies.append(body)
            server.running += 1
            server.most_running = max(server.most_running, server.running)
        try:
            self._answer(body)
        except (BrokenPipeError, ConnectionResetError):
            server.cut_off.set()
            self.close_connection = True
        finally:
            with server.lock:
                server.running -= 1

    def _answer(self, body):
        if self.path == "/tokenize":
            texts = (
                [body["prompt"]] if "prompt" in body else [m["content"] for m in body["messages"]]
            )
            words = " ".join(texts).split()
            return self._json(200, {"tokens": list(range(len(words))), "count": len(words)})
        chat = self.path == "/v1/chat/completions"
        if not chat and self.path != "/v1/completions":
            return self._fail(404, "no such route")
        prompt = body["messages"][-1]["content"] if chat else body["prompt"]
        if chat and isinstance(prompt, list):  # the words of a message with pictures
            prompt = " ".join(part["text"] for part in prompt if part["type"] == "text")
        words = [str(word) for word in (prompt.split() if isinstance(prompt, str) else prompt)]
        if "boom" in words:
            return self._fail(400, "boom is not allowed")
        if "busy" in words and prompt not in self.server.was_busy:
            self.server.was_busy.add(prompt)
            return self._fail(503, "try again")
        limit = body.get("max_tokens") or body.get("max_completion_tokens") or len(words)
        out = (words * limit)[:limit] if body.get("ignore_eos") else words[:limit]
        usage = {
            "prompt_tokens": len(words),
            "completion_tokens": len(out),
            "total_tokens": len(words) + len(out),
            "prompt_tokens_details": {"cached_tokens": 1},
        }
        if body.get("stream"):
            return self._stream(chat, words, out, usage)
        if "slow" in words:
            time.sleep(0.1)
        text = " ".join(out)
        choice = {"index": 0, "finish_reason": "stop"}
        choice |= {"message": {"role": "assistant", "content": text}} if chat else {"text": text}
        return self._json(200, {"id": "x-1", "choices": [choice], "usage": usage, "model": MODEL})

    def _stream(self, chat, words, out, usage):
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Connection", "close")
        self.end_headers()
        self.close_connection = True
        if chat:
            self._event({"choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}}]})
        if "think" in words:
            self._event({"choices": [{"index": 0, "delta": {"reasoning": "hmm let me see"}}]})
        for index, word in enumerate(out):
            if "slow" in words and index:
                time.sleep(0.1)
            if word == "midway":
                self._event({"error": {"message": "the engine died", "code": 500}})
                return
            text = word + " "
            part = {"delta": {"content": text}} if chat else {"text": text}
            self._event({"choices": [{"index": 0, **part}]})
        last = {"delta": {}} if chat else {"text": ""}
        guesses = {"draft_n": 8, "draft_n_accepted": 5}
        told = {"timings": guesses} if "guess" in words else {}
        self._event({"choices": [{"index": 0, "finish_reason": "stop", **last}], **told})
        self._event({"choices": [], "usage": usage})
        self.wfile.write(b"data: [DONE]\n\n")

    def _event(self, payload):
        self.wfile.write(b"data: " + json.dumps(payload).encode() + b"\n\n")
        self.wfile.flush()

    def _allowed(self):
        key = self.server.api_key
        if key is None or self.headers.get("Authorization") == f"Bearer {key}":
            return True
        self._fail(401, "a key is needed")
        return False

    def _fail(self, status, message):
        self._json(status, {"error": {"message": message, "type": "x", "code": status}})

    def _json(self, status, payload):
        data = json.dumps(payload).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)


def main():
    server = FakeServer()
    print(server.url, flush=True)
    server.serve_forever()


if __name__ == "__main__":
    main()
