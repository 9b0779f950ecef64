#!/usr/bin/env python3
"""fakes3.py: a strict S3 server in memory that misbehaves when told to.

Written from the published S3 API and SigV4 descriptions, independently of the client, so that the two
cannot share a mistake: what it does not know it refuses (501), what is malformed it refuses (400),
and every signature, body hash, length and condition is checked.

    fakes3.py [--port 0] [--control-port 0] [--bucket b] [--access-key k] [--secret-key s]
              [--token t] [--region r] [--log FILE] [--until-eof]

Prints one line "port N control M" when it listens (127.0.0.1). --until-eof: ends when standard input
does, so it cannot outlive a test.

Control port, plain HTTP, JSON bodies:
    POST   /orders     one order (below), or a list of them
    DELETE /orders     forget all orders and release what is stalled
    POST   /release    let stalled requests go on
    POST   /bandwidth  {"bytes_per_s": N}, shared by all connections, both directions; 0: no limit
    POST   /clock      {"skew_s": N}: the server's clock is N seconds ahead
    POST   /damage     {"key": K, "offset": N}: flips a bit of a stored object
    POST   /cut        {"key": K, "length": N}: shortens a stored object
    GET    /state      {"orders_hit": n, "stalled": n, "requests": n, "objects": {key: length}, ...}
    POST   /quit

An order: {"method": "GET", "key": "segments/*", "op": "get", "nth": 1, "count": 1, ACTIONS}
    op      put get head list delete batch mp-create mp-part mp-complete mp-abort mp-list; any of
            method, key (shell pattern) and op may be left out; count 0 is "for ever"
    ACTIONS (some can be combined)
        "delay_ms": N           wait before the answer
        "status": N, "code": "SlowDown", "message": "...", "retry_after": S   not performed
        "early": true           with status: answer before the body was read, then reset
        "reset": "before"       reset the connection instead of an answer, not performed
        "reset_body_at": N      reset when N bytes of the request's body have arrived
        "truncate": N           N bytes of the answer's body, then FIN; Content-Length says all
        "reset_at": N           the same, then RST
        "corrupt": N            flips a bit of byte N of the answer's body
        "error_200": "CODE"     status 200 with an error document
        "content_range": "TEXT" a wrong Content-Range
        "etag": "TEXT"          a wrong ETag
        "lost_reply": true      performed, then reset
        "stall": true           nothing happens until released (not performed before)
        "stall_at": N           stalls after N bytes of the answer's body
        "close": true           the connection is closed after a good answer that promised otherwise
"""
import argparse
import base64
import binascii
import calendar
import fnmatch
import hashlib
import hmac
import json
import os
import re
import socket
import struct
import sys
import threading
import time
import urllib.parse
import xml.etree.ElementTree as ET
from xml.sax.saxutils import escape

NS = "http://s3.amazonaws.com/doc/2006-03-01/"
MIN_PART = 5 * 1024 * 1024
MAX_HEAD = 64 * 1024
UNRESERVED = "-_.~"


class Refused(Exception):
    """An error answer: status, S3 code, message."""

    def __init__(self, status, code, message="", **headers):
        super().__init__(code)
        self.status, self.code, self.message, self.headers = status, code, message, headers


class Reset(Exception):
    """Drop the connection with a RST."""


class Gone(Exception):
    """The client has closed the connection."""


def quote(text, slash=False):
    return urllib.parse.quote(text, safe=UNRESERVED + ("/" if slash else ""))


class Request:
    method = path = raw_query = ""
    op = None
    key = ""

    def __init__(self):
        self.headers = {}
        self.query = []
        self.body = b""
        self.status = 0
        self.sent = 0

    def header(self, name, default=None):
        return self.headers.get(name, default)

    def param(self, name, default=None):
        for k, v in self.query:
            if k == name:
                return v
        return default


class Part:
    def __init__(self, data):
        self.data = data
        self.md5 = hashlib.md5(data).digest()
        self.etag = '"%s"' % self.md5.hex()


class Upload:
    def __init__(self, key, uid):
        self.key, self.id, self.parts, self.started = key, uid, {}, time.time()


class Object:
    def __init__(self, data, etag):
        self.data, self.etag, self.modified = data, etag, time.time()


def iso(t):
    return time.strftime("%Y-%m-%dT%H:%M:%S.000Z", time.gmtime(t))


class Server:
    def __init__(self, a):
        self.a = a
        self.mu = threading.Lock()
        self.objects, self.uploads = {}, {}
        self.orders, self.hits, self.stalled, self.requests = [], 0, 0, 0
        self.release = threading.Condition(self.mu)
        self.epoch = 0
        self.skew = 0
        self.rate, self.next_free = 0, 0.0
        self.log = open(a.log, "a", buffering=1) if a.log else None
        self.refusals = []

    # ---- bandwidth ----

    def pace(self, n):
        """One shared pipe: each transfer takes its place in it."""
        with self.mu:
            if not self.rate:
                return
            now = time.monotonic()
            self.next_free = max(self.next_free, now) + n / self.rate
            wait = self.next_free - now
        if wait > 0:
            time.sleep(wait)

    # ---- orders ----

    def order_for(self, r):
        with self.mu:
            found = None
            for o in self.orders:
                if o.get("method", r.method) != r.method or o.get("op", r.op) != r.op:
                    continue
                if not fnmatch.fnmatchcase(r.key, o.get("key", "*")):
                    continue
                o["seen"] = o.get("seen", 0) + 1
                nth, count = o.get("nth", 1), o.get("count", 1)
                if found is None and o["seen"] >= nth and (count == 0 or o["seen"] < nth + count):
                    found = o
            if found:
                self.hits += 1
            return found or {}

    def stall(self):
        with self.mu:
            epoch = self.epoch
            self.stalled += 1
            while self.epoch == epoch:
                self.release.wait()
            self.stalled -= 1

    def let_go(self):
        with self.mu:
            self.epoch += 1
            self.release.notify_all()

    # ---- SigV4, from the published description ----

    def authenticate(self, r):
        auth = r.header("authorization")
        if not auth:
            raise Refused(403, "AccessDenied", "no Authorization header")
        m = re.fullmatch(
            r"AWS4-HMAC-SHA256 Credential=([^/, ]+)/(\d{8})/([a-z0-9-]+)/s3/aws4_request, ?"
            r"SignedHeaders=([a-z0-9;-]+), ?Signature=([0-9a-f]{64})", auth)
        if not m:
            raise Refused(400, "AuthorizationHeaderMalformed", "cannot be parsed")
        access, day, region, signed, signature = m.groups()
        if access != self.a.access_key:
            raise Refused(403, "InvalidAccessKeyId", "unknown access key")
        if region != self.a.region:
            raise Refused(400, "AuthorizationHeaderMalformed",
                          "the region '%s' is wrong; expecting '%s'" % (region, self.a.region),
                          region=self.a.region)
        date = r.header("x-amz-date", "")
        if not re.fullmatch(r"\d{8}T\d{6}Z", date) or not date.startswith(day):
            raise Refused(403, "AccessDenied", "x-amz-date is missing or not of the scope's day")
        when = calendar.timegm(time.strptime(date, "%Y%m%dT%H%M%SZ"))
        if abs(when - (time.time() + self.skew)) > 900:
            raise Refused(403, "RequestTimeTooSkewed", "more than 15 minutes off")
        names = signed.split(";")
        if names != sorted(set(names)):
            raise Refused(400, "AuthorizationHeaderMalformed", "SignedHeaders are not in order")
        for need in ["host", "x-amz-content-sha256", "x-amz-date"]:
            if need not in names:
                raise Refused(403, "AccessDenied", "%s is not signed" % need)
        for h in r.headers:
            if (h.startswith("x-amz-") or h == "content-md5") and h not in names:
                raise Refused(403, "AccessDenied", "%s is sent but not signed" % h)
        for h in names:
            if h not in r.headers:
                raise Refused(403, "AccessDenied", "%s is signed but not sent" % h)
        if self.a.token and r.header("x-amz-security-token") != self.a.token:
            raise Refused(403, "InvalidToken", "wrong session token")
        query = sorted((quote(k), quote(v)) for k, v in r.query)
        canonical = "\n".join([
            r.method, quote(urllib.parse.unquote(r.path), slash=True),
            "&".join("%s=%s" % kv for kv in query),
            "".join("%s:%s\n" % (h, " ".join(r.headers[h].split())) for h in names),
            signed, r.header("x-amz-content-sha256")])
        scope = "%s/%s/s3/aws4_request" % (day, region)
        to_sign = "\n".join(["AWS4-HMAC-SHA256", date, scope,
                             hashlib.sha256(canonical.encode()).hexdigest()])
        k = ("AWS4" + self.a.secret_key).encode()
        for piece in [day, region, "s3", "aws4_request"]:
            k = hmac.new(k, piece.encode(), hashlib.sha256).digest()
        want = hmac.new(k, to_sign.encode(), hashlib.sha256).hexdigest()
        if not hmac.compare_digest(want, signature):
            raise Refused(403, "SignatureDoesNotMatch", "the signature is another one")

    @staticmethod
    def check_body(r):
        said = r.header("x-amz-content-sha256")
        if said != "UNSIGNED-PAYLOAD":
            if not re.fullmatch("[0-9a-f]{64}", said):
                raise Refused(501, "NotImplemented", "x-amz-content-sha256: " + said[:80])
            if hashlib.sha256(r.body).hexdigest() != said:
                raise Refused(400, "XAmzContentSHA256Mismatch", "the body has another SHA-256")
        sums = {"content-md5": lambda b: hashlib.md5(b).digest(),
                "x-amz-checksum-sha256": lambda b: hashlib.sha256(b).digest(),
                "x-amz-checksum-sha1": lambda b: hashlib.sha1(b).digest(),
                "x-amz-checksum-crc32": lambda b: struct.pack(">I", binascii.crc32(b))}
        for name, fn in sums.items():
            if name in r.headers:
                try:
                    given = base64.b64decode(r.headers[name], validate=True)
                except binascii.Error:
                    raise Refused(400, "InvalidDigest", name) from None
                if given != fn(r.body):
                    raise Refused(400, "BadDigest", "%s does not match the body" % name)

    # ---- what a request is ----

    def route(self, r):
        path = urllib.parse.unquote(r.path)
        if quote(path, slash=True) != r.path:
            raise Refused(400, "InvalidURI", "the path is not encoded as S3 wants it")
        host = r.header("host", "")
        if host.startswith(self.a.bucket + "."):
            bucket, key = self.a.bucket, path[1:]
        else:
            bucket, _, key = path[1:].partition("/")
        r.key = key
        names = {k for k, _ in r.query}
        if len(names) != len(r.query):
            raise Refused(400, "InvalidArgument", "a parameter is given twice")
        table = [
            ("GET", False, {"list-type"}, {"prefix", "start-after", "continuation-token",
                                           "max-keys", "encoding-type"}, "list"),
            ("GET", False, {"uploads"}, {"prefix", "key-marker", "upload-id-marker",
                                         "max-uploads", "encoding-type"}, "mp-list"),
            ("POST", False, {"delete"}, set(), "batch"),
            ("PUT", True, set(), set(), "put"),
            ("GET", True, set(), set(), "get"),
            ("HEAD", True, set(), set(), "head"),
            ("DELETE", True, set(), set(), "delete"),
            ("POST", True, {"uploads"}, set(), "mp-create"),
            ("PUT", True, {"partNumber", "uploadId"}, set(), "mp-part"),
            ("POST", True, {"uploadId"}, set(), "mp-complete"),
            ("DELETE", True, {"uploadId"}, set(), "mp-abort"),
        ]
        for method, has_key, need, may, op in table:
            if method == r.method and has_key == bool(key) and need <= names <= need | may:
                r.op = op
        if r.op in ("list", "mp-list"):
            r.key = r.param("prefix", "")
        return bucket

    def perform(self, r, bucket):
        if bucket != self.a.bucket:
            raise Refused(404, "NoSuchBucket", "no bucket of that name")
        if r.op is None:
            raise Refused(501, "NotImplemented", "%s with these parameters" % r.method)
        if len(r.key.encode()) > 1024:
            raise Refused(400, "KeyTooLongError")
        with self.mu:
            return getattr(self, "do_" + r.op.replace("-", "_"))(r)

    def conditions(self, r):
        o = self.objects.get(r.key)
        absent, match = r.header("if-none-match"), r.header("if-match")
        if absent is not None:
            if absent != "*" or match is not None:
                raise Refused(501, "NotImplemented", "If-None-Match other than *")
            if o:
                raise Refused(412, "PreconditionFailed", "the object exists")
        if match is not None:
            if not o:
                raise Refused(404, "NoSuchKey", "no such key")
            if match not in (o.etag, "*"):
                raise Refused(412, "PreconditionFailed", "another ETag")

    def do_put(self, r):
        if r.header("range"):
            raise Refused(501, "NotImplemented", "Range in a PUT")
        self.conditions(r)
        o = Object(r.body, '"%s"' % hashlib.md5(r.body).hexdigest())
        self.objects[r.key] = o
        return 200, {"ETag": o.etag}, b""

    def found(self, r):
        o = self.objects.get(r.key)
        if not o:
            raise Refused(404, "NoSuchKey", "no such key")
        if r.header("if-match") not in (None, o.etag, "*"):
            raise Refused(412, "PreconditionFailed", "another ETag")
        if r.header("if-none-match") is not None:
            raise Refused(501, "NotImplemented", "If-None-Match in a read")
        return o

    def do_get(self, r):
        o = self.found(r)
        head = {"ETag": o.etag, "Accept-Ranges": "bytes", "Content-Type": "binary/octet-stream",
                "Last-Modified": time.strftime("%a, %d %b %Y %H:%M:%S GMT",
                                               time.gmtime(o.modified))}
        rng = r.header("range")
        if rng is None:
            return 200, head, o.data
        m = re.fullmatch(r"bytes=(\d+)-(\d+)", rng)
        if not m or int(m[1]) > int(m[2]):
            raise Refused(400, "InvalidArgument", "not a range that a careful client sends: " + rng)
        first, last = int(m[1]), min(int(m[2]), len(o.data) - 1)
        if first >= len(o.data):
            raise Refused(416, "InvalidRange", "not satisfiable")
        head["Content-Range"] = "bytes %d-%d/%d" % (first, last, len(o.data))
        return 206, head, o.data[first:last + 1]

    def do_head(self, r):
        if r.header("range"):
            raise Refused(501, "NotImplemented", "Range in a HEAD")
        _, head, data = self.do_get(r)
        return 200, head, data

    def do_delete(self, r):
        match = r.header("if-match")
        o = self.objects.get(r.key)
        if match is not None and o and match not in (o.etag, "*"):
            raise Refused(412, "PreconditionFailed", "another ETag")
        self.objects.pop(r.key, None)
        return 204, {}, b""

    @staticmethod
    def xml(r):
        try:
            return ET.fromstring(r.body)
        except ET.ParseError as e:
            raise Refused(400, "MalformedXML", str(e)) from None

    @staticmethod
    def local(tag):
        return tag.rpartition("}")[2]

    def do_batch(self, r):
        if not any(h in r.headers for h in ("content-md5", "x-amz-checksum-sha256",
                                            "x-amz-checksum-crc32", "x-amz-checksum-sha1")):
            raise Refused(400, "InvalidRequest", "a checksum header is required")
        root, keys, quiet = self.xml(r), [], False
        if self.local(root.tag) != "Delete":
            raise Refused(400, "MalformedXML", "not a Delete document")
        for e in root:
            name = self.local(e.tag)
            if name == "Quiet":
                quiet = e.text == "true"
            elif name == "Object" and [self.local(x.tag) for x in e] == ["Key"]:
                keys.append(e[0].text or "")
            else:
                raise Refused(400, "MalformedXML", name)
        if not 1 <= len(keys) <= 1000:
            raise Refused(400, "MalformedXML", "%d keys" % len(keys))
        out = []
        for k in keys:
            self.objects.pop(k, None)
            if not quiet:
                out.append("<Deleted><Key>%s</Key></Deleted>" % escape(k))
        return 200, {}, self.doc("DeleteResult", "".join(out))

    @staticmethod
    def doc(name, inner):
        return ('<?xml version="1.0" encoding="UTF-8"?>\n<%s xmlns="%s">%s</%s>'
                % (name, NS, inner, name)).encode()

    @staticmethod
    def count_param(r, name, most):
        text = r.param(name, str(most))
        if not re.fullmatch(r"\d{1,9}", text):
            raise Refused(400, "InvalidArgument", name)
        return min(int(text), most)

    def name_writer(self, r):
        kind = r.param("encoding-type")
        if kind not in (None, "url"):
            raise Refused(400, "InvalidArgument", "encoding-type")
        return (lambda k: quote(k, slash=True)) if kind else escape

    def do_list(self, r):
        if r.param("list-type") != "2":
            raise Refused(501, "NotImplemented", "list-type")
        name, prefix = self.name_writer(r), r.param("prefix", "")
        most = self.count_param(r, "max-keys", 1000)
        after = r.param("start-after", "")
        token = r.param("continuation-token")
        if token is not None:
            try:
                after = base64.urlsafe_b64decode(token.encode()).decode()
            except (binascii.Error, UnicodeDecodeError):
                raise Refused(400, "InvalidArgument", "continuation-token") from None
        keys = [k for k in sorted(self.objects, key=str.encode)
                if k.startswith(prefix) and k.encode() > after.encode()]
        page = keys[:most]
        out = ["<Name>%s</Name><Prefix>%s</Prefix><KeyCount>%d</KeyCount><MaxKeys>%d</MaxKeys>"
               "<IsTruncated>%s</IsTruncated>"
               % (self.a.bucket, name(prefix), len(page), most,
                  "true" if len(keys) > len(page) else "false")]
        if len(keys) > len(page) and page:
            nxt = base64.urlsafe_b64encode(page[-1].encode()).decode()
            out.append("<NextContinuationToken>%s</NextContinuationToken>" % nxt)
        for k in page:
            o = self.objects[k]
            out.append("<Contents><Key>%s</Key><LastModified>%s</LastModified><ETag>%s</ETag>"
                       "<Size>%d</Size><StorageClass>STANDARD</StorageClass></Contents>"
                       % (name(k), iso(o.modified), escape(o.etag, {'"': "&quot;"}), len(o.data)))
        return 200, {}, self.doc("ListBucketResult", "".join(out))

    def do_mp_create(self, r):
        u = Upload(r.key, "up-" + binascii.hexlify(os.urandom(12)).decode() + "/+=")
        self.uploads[u.id] = u
        return 200, {}, self.doc(
            "InitiateMultipartUploadResult",
            "<Bucket>%s</Bucket><Key>%s</Key><UploadId>%s</UploadId>"
            % (self.a.bucket, escape(u.key), escape(u.id)))

    def upload(self, r):
        u = self.uploads.get(r.param("uploadId"))
        if not u or u.key != r.key:
            raise Refused(404, "NoSuchUpload", "no such upload")
        return u

    def do_mp_part(self, r):
        u, no = self.upload(r), r.param("partNumber")
        if not re.fullmatch(r"\d{1,5}", no) or not 1 <= int(no) <= 10000:
            raise Refused(400, "InvalidArgument", "partNumber")
        u.parts[int(no)] = p = Part(r.body)
        return 200, {"ETag": p.etag}, b""

    def do_mp_complete(self, r):
        u, root, parts, last = self.upload(r), self.xml(r), [], 0
        if self.local(root.tag) != "CompleteMultipartUpload" or not len(root):
            raise Refused(400, "MalformedXML", "not a CompleteMultipartUpload document")
        for e in root:
            f = {self.local(x.tag): (x.text or "") for x in e}
            if self.local(e.tag) != "Part" or not f.get("PartNumber", "").isdigit():
                raise Refused(400, "MalformedXML", "Part")
            no = int(f["PartNumber"])
            if no <= last:
                raise Refused(400, "InvalidPartOrder", "ascending order is required")
            last = no
            p = u.parts.get(no)
            if not p or f.get("ETag", "").strip('"') != p.etag.strip('"'):
                raise Refused(400, "InvalidPart", "part %d" % no)
            parts.append(p)
        if any(len(p.data) < MIN_PART for p in parts[:-1]):
            raise Refused(400, "EntityTooSmall", "a part but the last is below 5 MiB")
        self.conditions(r)
        md5 = hashlib.md5(b"".join(p.md5 for p in parts)).hexdigest()
        o = Object(b"".join(p.data for p in parts), '"%s-%d"' % (md5, len(parts)))
        self.objects[r.key] = o
        del self.uploads[u.id]
        return 200, {}, self.doc(
            "CompleteMultipartUploadResult", "<Bucket>%s</Bucket><Key>%s</Key><ETag>%s</ETag>"
            % (self.a.bucket, escape(r.key), escape(o.etag, {'"': "&quot;"})))

    def do_mp_abort(self, r):
        del self.uploads[self.upload(r).id]
        return 204, {}, b""

    def do_mp_list(self, r):
        name, prefix = self.name_writer(r), r.param("prefix", "")
        most = self.count_param(r, "max-uploads", 1000)
        mark = (r.param("key-marker", ""), r.param("upload-id-marker", ""))
        ups = sorted((u.key, u.id) for u in self.uploads.values() if u.key.startswith(prefix))
        ups = [x for x in ups if (x > mark if mark[1] else x[0] > mark[0]) or not mark[0]]
        page = ups[:most]
        out = ["<Bucket>%s</Bucket><IsTruncated>%s</IsTruncated>"
               % (self.a.bucket, "true" if len(ups) > len(page) else "false")]
        if len(ups) > len(page) and page:
            out.append("<NextKeyMarker>%s</NextKeyMarker><NextUploadIdMarker>%s"
                       "</NextUploadIdMarker>" % (name(page[-1][0]), escape(page[-1][1])))
        for k, i in page:
            out.append("<Upload><Key>%s</Key><UploadId>%s</UploadId><Initiated>%s</Initiated>"
                       "</Upload>" % (name(k), escape(i), iso(self.uploads[i].started)))
        return 200, {}, self.doc("ListMultipartUploadsResult", "".join(out))


REASONS = {200: "OK", 204: "No Content", 206: "Partial Content", 400: "Bad Request",
           403: "Forbidden", 404: "Not Found", 411: "Length Required", 412: "Precondition Failed",
           416: "Range Not Satisfiable", 500: "Internal Server Error", 501: "Not Implemented",
           503: "Slow Down"}


class Connection:
    """One client connection: requests one after another."""

    def __init__(self, server, sock):
        self.s, self.sock, self.buf = server, sock, b""
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def run(self):
        try:
            while self.one():
                pass
        except (Gone, OSError):
            pass
        except Reset:
            self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        finally:
            self.sock.close()

    def more(self, most=65536):
        data = self.sock.recv(most)
        if not data:
            raise Gone()
        self.s.pace(len(data))
        return data

    def read_head(self):
        while b"\r\n\r\n" not in self.buf:
            if len(self.buf) > MAX_HEAD:
                raise Gone()
            self.buf += self.more()
        head, _, self.buf = self.buf.partition(b"\r\n\r\n")
        lines = head.decode("latin-1").split("\r\n")
        r = Request()
        r.method, target, version = lines[0].split(" ")
        if version != "HTTP/1.1":
            raise Refused(400, "BadRequest", version)
        r.path, _, r.raw_query = target.partition("?")
        for line in lines[1:]:
            name, colon, value = line.partition(":")
            name = name.lower()
            if not colon or name in r.headers or name != name.strip():
                raise Refused(400, "BadRequest", "header " + name)
            r.headers[name] = value.strip()
        for piece in r.raw_query.split("&") if r.raw_query else []:
            k, _, v = piece.partition("=")
            r.query.append((urllib.parse.unquote(k), urllib.parse.unquote(v)))
        return r

    def body_length(self, r):
        if "transfer-encoding" in r.headers:
            raise Refused(501, "NotImplemented", "Transfer-Encoding")
        text = r.header("content-length")
        if text is None:
            if r.method in ("PUT", "POST"):
                raise Refused(411, "MissingContentLength", "Content-Length is required")
            return 0
        if not re.fullmatch(r"\d{1,12}", text):
            raise Refused(400, "BadRequest", "Content-Length")
        return int(text)

    def read_body(self, r, n, order):
        stop = order.get("reset_body_at")
        if r.header("expect", "").lower() == "100-continue" and n:
            self.sock.sendall(b"HTTP/1.1 100 Continue\r\n\r\n")
        chunks, have = [self.buf[:n]], min(n, len(self.buf))
        self.buf = self.buf[n:]
        while True:
            if stop is not None and have >= min(stop, n):
                raise Reset()
            if have == n:
                break
            data = self.more(min(n - have, 262144))
            chunks.append(data)
            have += len(data)
        r.body = b"".join(chunks)

    def one(self):
        if not self.buf:
            self.buf = self.more()
        began = time.monotonic()
        r, order, keep = None, {}, True
        try:
            try:
                r = self.read_head()
                bucket = self.s.route(r)
                order = self.s.order_for(r)
                keep = self.serve(r, bucket, order)
            except Refused as e:
                if r is None:
                    raise Gone() from None
                self.refuse(r, e)
                keep = False    # the body may be unread
        finally:
            if r is not None:
                with self.s.mu:
                    self.s.requests += 1
                    if self.s.log:
                        self.s.log.write("%s %s %d %d %.1f\n" % (
                            r.method, quote(r.key, slash=True) or "-", r.status,
                            len(r.body) or r.sent, (time.monotonic() - began) * 1000))
        return keep and r.header("connection", "").lower() != "close"

    def serve(self, r, bucket, order):
        n = self.body_length(r)
        if order.get("early"):
            self.answer_error(r, order)
            raise Reset()
        self.read_body(r, n, order)
        if order.get("delay_ms"):
            time.sleep(order["delay_ms"] / 1000)
        if order.get("stall"):
            self.s.stall()
        if order.get("reset"):
            raise Reset()
        try:
            self.s.authenticate(r)
            self.s.check_body(r)
            if "status" in order:
                self.answer_error(r, order)
                return True
            status, head, body = self.s.perform(r, bucket)
        except Refused as e:
            self.refuse(r, e)
            return True
        if order.get("lost_reply"):
            raise Reset()
        if "error_200" in order:
            status, head = 200, {}
            body = ("<Error><Code>%s</Code><Message>ordered</Message></Error>"
                    % order["error_200"]).encode()
        if "content_range" in order:
            head["Content-Range"] = order["content_range"]
        if "etag" in order:
            head["ETag"] = order["etag"]
        if "corrupt" in order and order["corrupt"] < len(body):
            at = order["corrupt"]
            body = body[:at] + bytes([body[at] ^ 0x20]) + body[at + 1:]
        self.answer(r, status, head, body, order)
        return not order.get("close")

    def refuse(self, r, e):
        with self.s.mu:
            self.s.refusals.append("%s %s: %d %s %s" % (r.method, r.path, e.status, e.code,
                                                        e.message))
            del self.s.refusals[:-50]
        region = "<Region>%s</Region>" % e.headers["region"] if "region" in e.headers else ""
        body = ("<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<Error><Code>%s</Code><Message>%s"
                "</Message>%s<RequestId>FAKE</RequestId></Error>"
                % (e.code, escape(e.message), region)).encode()
        self.answer(r, e.status, {"Content-Type": "application/xml"}, body, {})

    def answer_error(self, r, order):
        body = ("<Error><Code>%s</Code><Message>%s</Message></Error>"
                % (order.get("code", "InternalError"), order.get("message", "ordered"))).encode()
        head = {"Content-Type": "application/xml"}
        if "retry_after" in order:
            head["Retry-After"] = str(order["retry_after"])
        self.answer(r, order.get("status", 500), head, body, {})

    def answer(self, r, status, head, body, order):
        r.status = status
        lines = ["HTTP/1.1 %d %s" % (status, REASONS.get(status, "Ordered")),
                 "Date: " + time.strftime("%a, %d %b %Y %H:%M:%S GMT",
                                          time.gmtime(time.time() + self.s.skew)),
                 "Server: fakes3", "x-amz-request-id: FAKE%08d" % self.s.requests]
        lines += ["%s: %s" % kv for kv in head.items()]
        if status != 204:
            lines.append("Content-Length: %d" % len(body))
        self.sock.sendall(("\r\n".join(lines) + "\r\n\r\n").encode("latin-1"))
        if r.method == "HEAD" or status == 204:
            return
        cut = min(order.get(k, len(body)) for k in ("truncate", "reset_at", "stall_at"))
        self.send_body(r, body[:cut])
        if "stall_at" in order:
            self.s.stall()
            self.send_body(r, body[cut:])
        if "truncate" in order:
            raise Gone()
        if "reset_at" in order:
            time.sleep(0.05)    # let the bytes be read: a RST may overtake them
            raise Reset()

    def send_body(self, r, body):
        view = memoryview(body)
        while view:
            piece = view[:65536]
            self.s.pace(len(piece))
            self.sock.sendall(piece)
            r.sent += len(piece)
            view = view[len(piece):]


def control_answer(s, method, path, body):
    if (method, path) == ("POST", "/orders"):
        with s.mu:
            s.orders += body if isinstance(body, list) else [body]
    elif (method, path) == ("DELETE", "/orders"):
        with s.mu:
            s.orders, s.hits = [], 0
        s.let_go()
    elif (method, path) == ("POST", "/release"):
        s.let_go()
    elif (method, path) == ("POST", "/bandwidth"):
        with s.mu:
            s.rate = body["bytes_per_s"]
    elif (method, path) == ("POST", "/clock"):
        s.skew = body["skew_s"]
    elif (method, path) in (("POST", "/damage"), ("POST", "/cut")):
        with s.mu:
            o = s.objects[body["key"]]
            if path == "/cut":
                o.data = o.data[:body["length"]]
            else:
                at = body["offset"]
                o.data = o.data[:at] + bytes([o.data[at] ^ 0x10]) + o.data[at + 1:]
    elif (method, path) == ("GET", "/state"):
        with s.mu:
            return {"orders_hit": s.hits, "stalled": s.stalled, "requests": s.requests,
                    "objects": {k: len(o.data) for k, o in s.objects.items()},
                    "uploads": len(s.uploads), "refusals": s.refusals}
    elif (method, path) == ("POST", "/quit"):
        os._exit(0)
    else:
        raise KeyError(path)
    return {}


def control(s, sock):
    f = sock.makefile("rwb")
    try:
        method, path, _ = f.readline().decode().split(" ", 2)
        n = 0
        while True:
            line = f.readline().decode().strip()
            if not line:
                break
            if line.lower().startswith("content-length:"):
                n = int(line.split(":")[1])
        try:
            body = json.loads(f.read(n)) if n else {}
            out, status = control_answer(s, method, path, body), "200 OK"
        except (KeyError, ValueError, IndexError, TypeError) as e:
            out, status = {"error": repr(e)}, "400 Bad Request"
        data = json.dumps(out).encode()
        f.write(("HTTP/1.1 %s\r\nContent-Type: application/json\r\nContent-Length: %d\r\n"
                 "Connection: close\r\n\r\n" % (status, len(data))).encode() + data)
        f.flush()
    except (OSError, ValueError):
        pass
    finally:
        f.close()
        sock.close()


def listen(port):
    sock = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    sock.bind(("127.0.0.1", port))
    sock.listen(128)
    return sock


def accept_loop(sock, fn):
    while True:
        c, _ = sock.accept()
        threading.Thread(target=fn, args=(c,), daemon=True).start()


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--port", type=int, default=0)
    p.add_argument("--control-port", type=int, default=0)
    p.add_argument("--bucket", default="test-bucket")
    p.add_argument("--access-key", default="FAKEACCESSKEY")
    p.add_argument("--secret-key", default="fake/secret+key")
    p.add_argument("--token", default="")
    p.add_argument("--region", default="us-east-1")
    p.add_argument("--log")
    p.add_argument("--until-eof", action="store_true")
    s = Server(p.parse_args())
    data, ctl = listen(s.a.port), listen(s.a.control_port)
    threading.Thread(target=accept_loop, args=(ctl, lambda c: control(s, c)), daemon=True).start()
    serve = threading.Thread(target=accept_loop, args=(data, lambda c: Connection(s, c).run()),
                             daemon=True)
    serve.start()
    print("port %d control %d" % (data.getsockname()[1], ctl.getsockname()[1]), flush=True)
    if s.a.until_eof:
        sys.stdin.read()
    else:
        serve.join()


if __name__ == "__main__":
    main()
