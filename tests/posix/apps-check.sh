#!/bin/bash
# Everyday programs on a mount: usage: apps-check.sh DIR. Makes DIR/apps anew. About 10 s.
# Needs: sqlite3 git rsync logrotate inotify-tools gcc util-linux. Last line: "N passed, N failed".
d=$1/apps; rm -rf "$d"; mkdir -p "$d"; cd "$d" || exit 1; pass=0 fail=0
try() {
	if timeout 120 sh -c "$2" >.log 2>&1; then pass=$((pass + 1)); echo "ok   $1"
	else fail=$((fail + 1)); echo "FAIL $1: $(tail -1 .log)"; fi
}
try "sqlite, WAL, two writers" 'sqlite3 a.db "pragma journal_mode=wal; create table t(i integer primary key, v text);"
	for i in 1 2; do for k in $(seq 40); do echo "insert into t(v) values (hex(randomblob(100)));"; done | sqlite3 -cmd ".timeout 20000" a.db & done; wait
	test "$(sqlite3 a.db "pragma integrity_check; select count(*) from t" | tr "\n" " ")" = "ok 80 "'
try "sqlite, rollback journal, mmap, vacuum" 'sqlite3 b.db "pragma mmap_size=100000000; create table t(v);
	with recursive c(x) as (select 1 union all select x+1 from c where x<20000) insert into t select randomblob(50) from c;
	delete from t where rowid%2; vacuum; pragma integrity_check;" | tail -1 | grep -qx ok'
try "git: 300 files, rename, gc, fsck, clone" 'git init -q g && cd g && git config user.email a@b && git config user.name a &&
	for i in $(seq 300); do echo $i > f$i; done && git add . && git commit -qm 1 && git mv f1 f1b && git commit -qam 2 &&
	git gc -q && git fsck --strict && git clone -q . ../g2 && cd ../g2 && git status --porcelain | wc -l | grep -qx 0'
try "rsync: hard links, symlinks, checksum, append" 'mkdir s && cp -a /usr/include/asm-generic s/File && ln s/File/fcntl.h s/hl && ln -s File s/sl &&
	rsync -aH s/ t/ && rsync -aHc --itemize-changes s/ t/ | wc -l | grep -qx 0 && rsync -a --inplace --append-verify s/ t/ && diff -r s t'
try "logrotate: create+compress, copytruncate" 'mkdir lr; yes line | head -20000 > lr/a.log; cp lr/a.log lr/b.log
	printf "%s/lr/a.log { rotate 3\n size 1k\n compress\n create 0644 root root\n su root root\n }\n%s/lr/b.log { rotate 3\n size 1k\n copytruncate\n su root root\n }\n" "$PWD" "$PWD" > lr.conf
	chmod 644 lr.conf; logrotate -f -s "$PWD/lr.state" lr.conf && zcat lr/a.log.1.gz | wc -l | grep -qx 20000 && wc -l < lr/b.log.1 | grep -qx 20000 && test ! -s lr/b.log'
try "tar: pack, unpack, compare with times" 'tar cf x.tar -C /usr/include . && mkdir u && tar xf x.tar -C u && tar df x.tar -C u'
try "compile, archive, strip, run in place" 'printf "#include <stdio.h>\nint main(){puts(\"hi\");}" > h.c && gcc -g h.c -o h && ./h | grep -qx hi && ar rcs libh.a h.c && strip h && ./h'
try "tail -F over rename and append" 'echo 1 > tl; timeout 6 tail -s 0.1 -n +1 -F tl > tl.out 2>/dev/null & sleep 0.8; echo 2 >> tl; mv tl tl.1; echo 3 > tl; sleep 1.5; echo 4 >> tl; sleep 1.5; wait; test "$(tr -d "\n" < tl.out)" = 1234'
try "flock between processes" 'mkfifo go; (exec 9>lk; flock -n 9 && echo >held; read -r x <go) &
for k in $(seq 500); do [ ! -e held ] || break; sleep 0.02; done
[ -e held ] && ! flock -n lk true && echo >go && wait && flock -n lk true'
try "inotify close_write of a local writer" 'timeout 20 inotifywait -q -e close_write -t 15 . > inw & while kill -0 $! 2>/dev/null; do echo > inx; sleep 0.05; done; grep -q inx inw'
cd /; rm -rf "$d"
echo "$pass passed, $fail failed"
[ $fail -eq 0 ]
