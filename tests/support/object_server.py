#!/usr/bin/env python3
"""A store of objects for tests, in memory: Amazon S3's protocol as far as clients of libarrow use it, a plain web server, and the
Hugging Face hub's addresses.

  object_server.py [--files FOLDER]     prints "port N" and serves as long as the process that started it

/BUCKET/KEY is S3's (signatures are not checked, but a request without one is refused for the bucket "private"); /web/PATH serves the
objects of the bucket "web" without lists; /api/(models|datasets)/OWNER/NAME/tree/REV and /OWNER/NAME/resolve/REV/PATH serve those of the
bucket "hub" under models/OWNER/NAME or datasets/OWNER/NAME. {"latency_ms": N, "faults": ["503", "cut", "short", "stall",
"reset"], "fault_share": 0.2, "seed": 1, "ranges": true, "write": {"web/a.txt": ["text", 3]}} in /_control?set=JSON changes how it answers
and what it has (here the text three times); /_control returns the names of all objects and counts of requests and
faults since then.
"""

import functools
import hashlib
import json
import os
import random
import sys
import threading
import time
import urllib.parse
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from xml.sax.saxutils import escape

objects = {}  # (bucket, key) -> (content, time)
uploads = {}  # id -> {part number: content}
control = {"latency_ms": 0, "faults": [], "fault_share": 0.0, "seed": 1, "ranges": True}
counts = {"requests": 0, "faults": 0, "bytes": 0, "by_method": {}}
lock = threading.RLock()
chance = random.Random(1)


@functools.lru_cache(maxsize=16)  # a hash of 64 MB with each request would be what a benchmark measures
def tag_of(content):
    return hashlib.md5(content).hexdigest()


def decoded(body):
    """The content of a body in AWS's chunks, whose trailer is dropped."""
    content, at = bytearray(), 0
    while True:
        end = body.index(b"\r\n", at)
        size = int(body[at:end].split(b";")[0], 16)
        if size == 0:
            return bytes(content)
        content += body[end + 2 : end + 2 + size]
        at = end + 2 + size + 2


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def body(self):
        if self.headers.get("Transfer-Encoding", "") == "chunked":
            content = bytearray()
            while size := int(self.rfile.readline().split(b";")[0], 16):
                content += self.rfile.read(size)
                self.rfile.readline()
            self.rfile.readline()
            content = bytes(content)
        else:
            content = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        streams = self.headers.get("x-amz-content-sha256", "").startswith("STREAMING") or "aws-chunked" in self.headers.get("Content-Encoding", "")
        return decoded(content) if streams else content

    def answer(self, status, content=b"", headers={}, fault=None):
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        if "Content-Length" not in headers:
            self.send_header("Content-Length", str(len(content)))
        if fault == "cut" or fault == "short":
            self.send_header("Connection", "close")
        self.end_headers()
        if self.command == "HEAD":
            return
        if fault in ("cut", "short"):  # the answer ends before its length
            content = content[: len(content) // 2]
            self.close_connection = True
        if not self.path.startswith("/_control"):
            with lock:
                counts["bytes"] += len(content)
        self.wfile.write(content)

    def error(self, status, code, text=""):
        body = f"<?xml version='1.0'?><Error><Code>{code}</Code><Message>{escape(text or code)}</Message></Error>".encode()
        self.answer(status, body, {"Content-Type": "application/xml"})

    def fault(self):
        """The fault of this request, or None. Requests of the control are without faults."""
        with lock:
            counts["requests"] += 1
            counts["by_method"][self.command] = counts["by_method"].get(self.command, 0) + 1
            if not control["faults"] or chance.random() >= control["fault_share"]:
                return None
            counts["faults"] += 1
            return chance.choice(control["faults"])

    def send_object(self, content, when, headers=None, fault=None):
        headers = dict(headers or {})
        headers.setdefault("ETag", f'"{tag_of(content)}"')
        headers.setdefault("Last-Modified", formatdate(when, usegmt=True))
        expected = self.headers.get("If-Match", "").strip('"')
        if expected and expected != tag_of(content):
            return self.error(412, "PreconditionFailed")
        status, part = 200, content
        if control["ranges"]:
            headers["Accept-Ranges"] = "bytes"
            asked = self.headers.get("Range", "")
            if asked.startswith("bytes="):
                first, _, last = asked[6:].partition("-")
                first, last = int(first), min(int(last or len(content) - 1), len(content) - 1)
                if first >= len(content):
                    return self.error(416, "InvalidRange")
                status, part = 206, content[first : last + 1]
                headers["Content-Range"] = f"bytes {first}-{last}/{len(content)}"
        headers["Content-Length"] = str(len(part))
        self.answer(status, part, headers, fault)

    def serve(self):
        url = urllib.parse.urlsplit(self.path)
        query = urllib.parse.parse_qs(url.query, keep_blank_values=True)
        path = urllib.parse.unquote(url.path).lstrip("/")
        if path == "_control":
            return self.serve_control(query)
        fault = self.fault()
        if control["latency_ms"]:
            time.sleep(control["latency_ms"] / 1000)
        if fault == "reset":
            self.close_connection = True
            self.connection.close()
            return
        if fault == "stall":
            time.sleep(control.get("stall_seconds", 2))
        body = self.body() if self.command in ("PUT", "POST") else b""
        if fault == "503":
            return self.error(503, "SlowDown", "Please reduce your request rate.")
        first, _, rest = path.partition("/")
        if first == "web":
            return self.serve_web(rest, fault)
        if first == "api" or "/resolve/" in path or first == "cdn":
            return self.serve_hub(path, query, fault)
        self.serve_s3(first, rest, query, body, fault)

    do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = serve

    def serve_control(self, query):
        if "set" in query:
            with lock:
                control.update(json.loads(query["set"][0]))
                for name in control.pop("remove", []):
                    bucket, _, key = name.partition("/")
                    objects.pop((bucket, key), None)
                for name, (text, times) in control.pop("write", {}).items():
                    bucket, _, key = name.partition("/")
                    objects[(bucket, key)] = (text.encode() * times, time.time())
                chance.seed(control["seed"])
                counts.update({"requests": 0, "faults": 0, "bytes": 0, "by_method": {}})
            return self.answer(200, b"{}")
        with lock:
            names = sorted(f"{bucket}/{key}" for bucket, key in objects)
            self.answer(200, json.dumps(counts | {"objects": names}).encode())

    def serve_web(self, key, fault):
        found = objects.get(("web", key))
        if found is None:
            return self.answer(404)
        self.send_object(*found, fault=fault)

    def serve_hub(self, path, query, fault):
        commit = "0123456789abcdef0123456789abcdef01234567"
        if path.startswith("cdn/"):
            found = objects.get(("hub", path[4:]))
            if self.headers.get("Authorization"):  # the store of large files would refuse the hub's token
                return self.answer(400)
            return self.send_object(*found, fault=fault) if found else self.answer(404)
        if path.startswith("api/"):
            _, kind, owner, name, _, revision, *folder = path.split("/")
            prefix = f"{kind}/{owner}/{name}/"
            within = prefix + "".join(part + "/" for part in folder)
            files = [{"type": "file", "path": key[len(prefix) :], "size": len(content), "oid": tag_of(content)}
                     for (bucket, key), (content, _) in sorted(objects.items()) if bucket == "hub" and key.startswith(within)]
            if not files:
                return self.answer(404, b'{"error":"Repository not found"}')
            begin, page = int(query.get("cursor", ["0"])[0]), 3
            headers = {"Content-Type": "application/json"}
            if begin + page < len(files):
                host = self.headers["Host"]
                headers["Link"] = f'<http://{host}/{path}?recursive=true&cursor={begin + page}>; rel="next"'
            return self.answer(200, json.dumps(files[begin : begin + page]).encode(), headers)
        repository, _, rest = path.partition("/resolve/")
        revision, _, file = rest.partition("/")
        key = (repository if repository.startswith("datasets/") else "models/" + repository) + "/" + file
        if "gated" in repository and self.headers.get("Authorization") != "Bearer hf_good":
            return self.answer(401)
        found = objects.get(("hub", key))
        if found is None:
            return self.answer(404)
        content, when = found
        headers = {"X-Repo-Commit": commit, "ETag": f'"{tag_of(content)}"'}
        if len(content) > 4096:  # a large file is in another store
            headers |= {"X-Linked-ETag": f'"{tag_of(content)}"', "X-Linked-Size": str(len(content)), "Content-Length": "0",
                        "Location": f'http://127.0.0.1:{self.server.server_port}/cdn/{urllib.parse.quote(key)}'}
            return self.answer(302, b"", headers)
        self.send_object(content, when, headers, fault)

    def serve_s3(self, bucket, key, query, body, fault):
        if bucket == "private" and not self.headers.get("Authorization"):
            return self.error(403, "AccessDenied")
        if bucket.startswith("missing"):
            return self.error(404, "NoSuchBucket")
        if self.command == "GET" and not key:
            return self.list_bucket(bucket, query)
        if self.command == "POST" and "uploads" in query:
            upload = hashlib.md5(os.urandom(8)).hexdigest()
            uploads[upload] = {}
            text = f"<InitiateMultipartUploadResult><Bucket>{bucket}</Bucket><Key>{escape(key)}</Key><UploadId>{upload}</UploadId></InitiateMultipartUploadResult>"
            return self.answer(200, text.encode(), {"Content-Type": "application/xml"})
        if self.command == "PUT" and "uploadId" in query:
            uploads[query["uploadId"][0]][int(query["partNumber"][0])] = body
            return self.answer(200, b"", {"ETag": f'"{tag_of(body)}"'})
        if self.command == "POST" and "uploadId" in query:
            parts = uploads.pop(query["uploadId"][0], None)
            if parts is None:
                return self.error(404, "NoSuchUpload")
            content = b"".join(parts[number] for number in sorted(parts))
            objects[(bucket, key)] = (content, time.time())
            text = f'<CompleteMultipartUploadResult><Bucket>{bucket}</Bucket><Key>{escape(key)}</Key><ETag>"{tag_of(content)}"</ETag></CompleteMultipartUploadResult>'
            return self.answer(200, text.encode(), {"Content-Type": "application/xml"})
        if self.command == "DELETE":
            if "uploadId" in query:
                uploads.pop(query["uploadId"][0], None)
            else:
                objects.pop((bucket, key), None)
            return self.answer(204)
        if self.command == "PUT":
            objects[(bucket, key)] = (body, time.time())
            return self.answer(200, b"", {"ETag": f'"{tag_of(body)}"'})
        if self.command == "POST" and "delete" in query:
            import re

            for name in re.findall(r"<Key>(.*?)</Key>", body.decode()):
                objects.pop((bucket, name), None)
            return self.answer(200, b"<DeleteResult></DeleteResult>", {"Content-Type": "application/xml"})
        if self.command == "HEAD" and not key:
            return self.answer(200)
        found = objects.get((bucket, key))
        if found is None:
            return self.error(404, "NoSuchKey") if self.command == "GET" else self.answer(404)
        self.send_object(*found, fault=fault)

    def list_bucket(self, bucket, query):
        prefix, delimiter = query.get("prefix", [""])[0], query.get("delimiter", [""])[0]
        most, after = int(query.get("max-keys", ["1000"])[0]), query.get("continuation-token", [""])[0]
        keys = sorted(key for (other, key) in objects if other == bucket and key.startswith(prefix) and key > after)
        entries, folders, last = [], [], ""
        for key in keys:
            if len(entries) + len(folders) >= min(most, 5):  # short pages, so that clients must continue
                break
            last = key
            rest = key[len(prefix) :]
            if delimiter and delimiter in rest:
                folder = prefix + rest[: rest.index(delimiter) + 1]
                folders += [folder] if folder not in folders else []
                continue
            content, when = objects[(bucket, key)]
            stamp = time.strftime("%Y-%m-%dT%H:%M:%S.000Z", time.gmtime(when))
            entries.append(f'<Contents><Key>{escape(key)}</Key><LastModified>{stamp}</LastModified><ETag>"{tag_of(content)}"</ETag><Size>{len(content)}</Size><StorageClass>STANDARD</StorageClass></Contents>')
        more = bool(keys) and last != keys[-1]
        text = (f"<?xml version='1.0' encoding='UTF-8'?><ListBucketResult xmlns='http://s3.amazonaws.com/doc/2006-03-01/'><Name>{bucket}</Name><Prefix>{escape(prefix)}</Prefix>"
                f"<KeyCount>{len(entries) + len(folders)}</KeyCount><MaxKeys>{most}</MaxKeys><IsTruncated>{'true' if more else 'false'}</IsTruncated>"
                + (f"<NextContinuationToken>{escape(last)}</NextContinuationToken>" if more else "") + "".join(entries)
                + "".join(f"<CommonPrefixes><Prefix>{escape(folder)}</Prefix></CommonPrefixes>" for folder in folders) + "</ListBucketResult>")
        self.answer(200, text.encode(), {"Content-Type": "application/xml"})


def main():
    if "--files" in sys.argv:  # BUCKET/KEY below the folder
        root = sys.argv[sys.argv.index("--files") + 1]
        for folder, _, names in os.walk(root):
            for name in names:
                path = os.path.join(folder, name)
                bucket, _, key = os.path.relpath(path, root).partition("/")
                objects[(bucket, key)] = (open(path, "rb").read(), os.path.getmtime(path))
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    parent = os.getppid()
    print(f"port {server.server_port}\nserves", flush=True)
    while os.getppid() == parent:
        time.sleep(1)


main()
