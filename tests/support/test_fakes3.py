#!/usr/bin/env python3
"""The fake S3 server against the published signing example and by hand-made requests: what it accepts
and, above all, what it refuses."""
import hashlib
import http.client
import json
import os
import socket
import subprocess
import sys
import time
import unittest

HERE = os.path.dirname(os.path.abspath(__file__))
EMPTY = hashlib.sha256(b"").hexdigest()
# The GET example of the S3 documentation of Signature Version 4.
EXAMPLE = {
    "Host": "examplebucket.s3.amazonaws.com",
    "Range": "bytes=0-9",
    "x-amz-content-sha256": EMPTY,
    "x-amz-date": "20130524T000000Z",
    "Authorization":
        "AWS4-HMAC-SHA256 Credential=AKIAIOSFODNN7EXAMPLE/20130524/us-east-1/s3/aws4_request,"
        "SignedHeaders=host;range;x-amz-content-sha256;x-amz-date,"
        "Signature=f0e8bdb87c964420e857bd35b5d6ed310bd44f0170aba48dd91039c6036bdb41",
}
# And its LIST example.
LIST = dict(EXAMPLE)
del LIST["Range"]
LIST["Authorization"] = (
    "AWS4-HMAC-SHA256 Credential=AKIAIOSFODNN7EXAMPLE/20130524/us-east-1/s3/aws4_request,"
    "SignedHeaders=host;x-amz-content-sha256;x-amz-date,"
    "Signature=34b48302e7b5fa45bde8084f4b7868a86f0a534bc59db6670ed5711ef69dc6f7")
THEN = 1369353600


class FakeS3(unittest.TestCase):
    def setUp(self):
        self.p = subprocess.Popen(
            [sys.executable, os.path.join(HERE, "fakes3.py"), "--until-eof", "--bucket",
             "examplebucket", "--access-key", "AKIAIOSFODNN7EXAMPLE", "--secret-key",
             "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY"],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        words = self.p.stdout.readline().split()
        self.port, self.ctl = int(words[1]), int(words[3])
        self.control("POST", "/clock", {"skew_s": THEN - time.time()})

    def tearDown(self):
        self.p.stdin.close()
        self.p.wait(10)
        self.p.stdout.close()

    def control(self, method, path, body=None):
        c = http.client.HTTPConnection("127.0.0.1", self.ctl, timeout=10)
        c.request(method, path, json.dumps(body) if body is not None else None)
        r = c.getresponse()
        data = r.read()
        c.close()
        self.assertEqual(r.status, 200, data)
        return json.loads(data)

    def ask(self, method, path, headers, body=None):
        c = http.client.HTTPConnection("127.0.0.1", self.port, timeout=10)
        c.putrequest(method, path, skip_host=True, skip_accept_encoding=True)
        for k, v in headers.items():
            c.putheader(k, v)
        c.endheaders(body)
        r = c.getresponse()
        data = r.read().decode()
        c.close()
        return r.status, data

    def test_published_signature_is_accepted(self):
        status, body = self.ask("GET", "/test.txt", EXAMPLE)
        self.assertEqual(status, 404)
        self.assertIn("NoSuchKey", body)

    def test_any_change_to_a_signed_request_is_refused(self):
        for change in ({"Range": "bytes=0-8"}, {"x-amz-date": "20130524T000001Z"},
                       {"x-amz-content-sha256": "0" * 64}):
            status, body = self.ask("GET", "/test.txt", {**EXAMPLE, **change})
            self.assertEqual(status, 403, change)
            self.assertIn("SignatureDoesNotMatch", body)
        self.assertIn("SignatureDoesNotMatch", self.ask("GET", "/test.tx", EXAMPLE)[1])
        self.assertEqual(self.ask("HEAD", "/test.txt", EXAMPLE)[0], 403)

    def test_unsigned_additions_are_refused(self):
        status, body = self.ask("GET", "/test.txt", {**EXAMPLE, "x-amz-meta-x": "1"})
        self.assertEqual(status, 403)
        self.assertIn("not signed", body)
        headers = dict(EXAMPLE)
        del headers["Authorization"]
        self.assertEqual(self.ask("GET", "/test.txt", headers)[0], 403)

    def test_a_clock_that_is_off_is_refused(self):
        self.control("POST", "/clock", {"skew_s": THEN - time.time() + 1000})
        self.assertIn("RequestTimeTooSkewed", self.ask("GET", "/test.txt", EXAMPLE)[1])

    def test_published_query_signature_needs_the_old_list(self):
        # GET ?max-keys=2&prefix=J is version 1 of LIST, which this server does not know: so the
        # signature is right (it is checked first) and the operation is refused.
        status, body = self.ask("GET", "/?max-keys=2&prefix=J", LIST)
        self.assertEqual(status, 501, body)

    def test_what_is_not_known_is_refused(self):
        self.assertEqual(self.ask("GET", "/k?acl", EXAMPLE)[0], 403)
        self.assertEqual(self.ask("PUT", "/k", {**EXAMPLE})[0], 411)
        self.assertEqual(self.ask("PUT", "/k", {**EXAMPLE, "Transfer-Encoding": "chunked"})[0], 501)
        self.assertIn("InvalidURI", self.ask("GET", "/a+b", EXAMPLE)[1])

    def test_orders_hit_the_nth_request_of_their_kind(self):
        self.control("POST", "/orders", {"op": "get", "key": "test*", "nth": 2, "status": 503,
                                         "code": "SlowDown", "retry_after": 7})
        self.assertEqual(self.ask("GET", "/test.txt", EXAMPLE)[0], 404)
        self.assertEqual(self.ask("GET", "/test.txt", EXAMPLE)[0], 503)
        self.assertEqual(self.ask("GET", "/test.txt", EXAMPLE)[0], 404)
        self.assertEqual(self.control("GET", "/state")["orders_hit"], 1)

    def test_a_reset_is_a_reset(self):
        self.control("POST", "/orders", {"reset": "before"})
        with self.assertRaises((ConnectionResetError, http.client.RemoteDisconnected)):
            self.ask("GET", "/test.txt", EXAMPLE)

    def test_a_stalled_request_waits_for_its_release(self):
        self.control("POST", "/orders", {"stall": True})
        s = socket.create_connection(("127.0.0.1", self.port), timeout=0.2)
        head = "".join("%s: %s\r\n" % kv for kv in EXAMPLE.items())
        s.sendall(("GET /test.txt HTTP/1.1\r\n%s\r\n" % head).encode())
        with self.assertRaises(socket.timeout):
            s.recv(1)
        self.control("POST", "/release")
        s.settimeout(10)
        self.assertTrue(s.recv(100).startswith(b"HTTP/1.1 404"))
        s.close()


if __name__ == "__main__":
    unittest.main()
