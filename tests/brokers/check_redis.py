#!/usr/bin/env python3
"""Redis with an append-only file: in the root of a mount, with fsync at each write, then in a directory of
it with fsync at each second. Written while everything is sealed and evicted all the time; killed, evicted,
replayed; killed in the middle of a rewrite of its file; rewritten and saved while cold.
"""
import os
import redis

from brokerkit import FULL, Churn, Failed, all_there, check, free_port, record, run, step, wait_for

N = int(os.environ.get("BROKERS_N", 100000 if FULL else 8000))


class Redis:
    def __init__(self, w, directory, fsync):
        self.w, self.fsync = w, fsync
        self.data = os.path.join(w.mnt, directory) if directory else w.mnt
        os.makedirs(self.data, exist_ok=True)
        self.port = free_port()
        self.start()

    def start(self):
        self.w.start([os.environ["REDIS_SERVER"], "--port", str(self.port), "--bind", "127.0.0.1", "--dir",
                      self.data, "--appendonly", "yes", "--appendfsync", self.fsync, "--save", "",
                      "--auto-aof-rewrite-percentage", "0"], "Ready to accept connections")
        self.r = redis.Redis(port=self.port, socket_timeout=600)

    def write(self, ids):
        """Pipelines of 50; the answers are the acknowledgements."""
        for k in range(ids.start, ids.stop, 50):
            with self.r.pipeline(transaction=False) as q:
                for i in range(k, min(k + 50, ids.stop)):
                    if i % 2:
                        q.xadd("s", {"d": all_of[i]})
                    else:
                        q.set(f"k{i}", all_of[i])
                q.execute()

    def verify(self, n, what):
        keys = [f"k{i}" for i in range(0, n, 2)]
        got = [v or b"" for k in range(0, len(keys), 500) for v in self.r.mget(keys[k:k + 500])]
        all_there(f"{what} ({self.fsync})", got + [f[b"d"] for _, f in self.r.xrange("s")], n)

    def persistence(self, key):
        return self.r.info("persistence")[key]

    def kill(self):
        """With everysec, Redis holds its write(2) back for up to two seconds while a flush is under way, and
        answers all the same: only what it has written is promised."""
        if self.fsync == "everysec" and not wait_for(300, lambda: self.persistence("aof_buffer_length") == 0):
            raise Failed("Redis does not write what it holds back")
        self.w.proc.kill()

    def rewrite(self):
        self.r.bgrewriteaof()
        ended = wait_for(300, lambda: not self.persistence("aof_rewrite_in_progress"))
        check("the append-only file was rewritten", ended and
              self.persistence("aof_last_bgrewrite_status") == "ok")

    def save(self):
        self.r.bgsave()
        ended = wait_for(300, lambda: not self.persistence("rdb_bgsave_in_progress"))
        check("a snapshot was saved", ended and self.persistence("rdb_last_bgsave_status") == "ok")


def life(w, directory, fsync):
    half, size = N // 2, sum(map(len, all_of[:N // 2]))
    s = Redis(w, directory, fsync)
    with Churn(w):
        s.write(range(half))
    step(f"{half} records, fsync {fsync}")
    s.kill()
    w.all_to_store("after kill -9")
    s.start()
    s.verify(half, "replayed after kill -9")
    w.came_back("replay", size)
    with Churn(w):
        s.rewrite()
        s.r.config_set("rdb-key-save-delay", 200000)       # us for each key: the next one will not end
        s.r.bgrewriteaof()
        s.write(range(half, N))
        if not s.persistence("aof_rewrite_in_progress"):
            raise Failed("the rewrite ended before it could be interrupted")
        s.kill()
    w.remount()
    w.all_to_store("after kill -9 during a rewrite")
    s.start()
    s.verify(N, "replayed after kill -9 during a rewrite")
    w.came_back("replay", size)
    s.rewrite()
    s.save()
    code = w.proc.stop()
    check("clean shutdown", code == 0, code)
    w.remount(kill=False)
    w.all_to_store("after a clean shutdown")
    s.start()
    s.verify(N, "replayed after a clean shutdown")
    w.came_back("replay", size)
    w.proc.stop()


def main(w):
    life(w, "", "always")
    life(w, "second", "everysec")
    w.used(uploads=4 * sum(map(len, all_of)) // 65536, evictions=4 * sum(map(len, all_of)) // 65536)
    w.server_log_clean(r" # .*(rror|ail|Bad|too long)", "overcommit")



all_of = [record(i) for i in range(N)]
run(main, directory="")
