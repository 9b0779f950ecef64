#!/bin/bash
# brokers-check.sh DIR [ID...]: shell-level checks of what message brokers need from a data directory.
# Every check is short; nothing here is a load. Prints "ok|FAIL|skip ID text". Exit code = number of FAILs.
D=${1:?dir}; shift; ONLY=" $* "; W=$D/bc.$$; mkdir -p "$W" || exit 99; cd "$W" || exit 99
export PYTHONDONTWRITEBYTECODE=1 PY=/usr/bin/python3; F=0; N=0
ck(){ local id=$1 txt=$2; shift 2; [ "$ONLY" != "  " ] && [[ "$ONLY" != *" $id "* ]] && return; N=$((N+1)); local out rc
  mkdir -p "$W/$id"; out=$(cd "$W/$id" && timeout 30 bash -c "$*" 2>&1); rc=$?
  if [ $rc = 0 ]; then echo "ok   $id $txt"; elif [ $rc = 77 ]; then echo "skip $id $txt ($(echo "$out"|tail -1|cut -c1-90))"; else F=$((F+1)); echo "FAIL $id $txt | rc=$rc $(echo "$out"|tail -1|cut -c1-140)"; fi; }

ck R01 "O_CREAT|O_EXCL probe file, then unlink (nats _test_, etcd .touch)" 'set -C; : > p; ! ( : > p ) 2>/dev/null; rm p; [ ! -e p ]'
ck R02 "two O_APPEND writers never overwrite each other" 'for w in a b; do (exec >>f; for i in $(seq 300); do echo $w$i; done) & done; wait; [ $(wc -l <f) = 600 ] && [ $(sort -u f|wc -l) = 600 ]'
ck R03 "overwrite inside the file, size unchanged (KahaDB, beanstalkd, bbolt)" 'head -c 20000 /dev/zero|tr "\0" a>f; printf XYZ|dd of=f bs=1 seek=9000 conv=notrunc 2>/dev/null; [ $(stat -c %s f) = 20000 ] && [ "$(dd if=f bs=1 skip=8999 count=5 2>/dev/null)" = aXYZa ]'
ck R04 "1-byte write far past EOF; hole reads as zeros; then fill the hole (ZooKeeper, BookKeeper)" 'printf head>f; printf "\0"|dd of=f bs=1 seek=67108879 conv=notrunc 2>/dev/null; [ $(stat -c %s f) = 67108880 ] && cmp -n 1000000 -i 4:0 f /dev/zero && printf body|dd of=f bs=1 seek=4 conv=notrunc 2>/dev/null && [ "$(head -c 8 f)" = headbody ] && [ $(stat -c %s f) = 67108880 ]'
ck R05 "ftruncate grow, shrink, grow again reads zeros (Kafka index, torn-tail repair)" 'truncate -s 10485760 f; printf ABCDEFGH|dd of=f conv=notrunc 2>/dev/null; truncate -s 4 f; truncate -s 4096 f; [ "$(head -c 4 f)" = ABCD ] && cmp -n 4092 -i 4:0 f /dev/zero'
ck R06 "ftruncate to 0 and rewrite through an old fd (RabbitMQ journal.jif)" 'exec 5<>f; echo one >&5; truncate -s 0 f; $PY -c "import os;os.lseek(5,0,0);os.write(5,b\"two\")"; [ "$(cat f)" = two ]'
ck R07 "rename over an existing file is atomic to a reader" 'echo 0000000000 >c; (for i in $(seq 300); do printf "%010d\n" $i>t; mv -fT t c; done)& P=$!; bad=0; while kill -0 $P 2>/dev/null; do x=$(cat c 2>&1); [[ $x =~ ^[0-9]{10}$ ]] || bad=1; done; wait; [ $bad = 0 ] && [ "$(cat c)" = 0000000300 ] && [ ! -e t ]'
ck R08 "rename a file while open for writing; fd stays valid (Kafka .deleted/.swap, ra .tmp->.wal)" 'exec 5>>f; echo a>&5; mv f g; echo b>&5; [ "$(cat g)" = "$(printf "a\nb")" ] && [ ! -e f ]'
ck R09 "rename a directory holding open, mapped and locked files (Kafka -delete, nats purge, etcd wal.tmp)" 'mkdir d; $PY - <<P
import os,mmap,fcntl
fd=os.open("d/f",os.O_CREAT|os.O_RDWR); os.ftruncate(fd,8192); fcntl.flock(fd,2); m=mmap.mmap(fd,8192); m[0:3]=b"abc"
os.rename("d","e"); os.pwrite(fd,b"def",3); m[6:9]=b"ghi"; m.flush(); os.fsync(fd)
assert open("e/f","rb").read(9)==b"abcdefghi"; assert not os.path.exists("d"); os.rename("e","d2/../d3") if os.path.isdir("d2") else None
P'
ck R10 "unlink an open file: I/O goes on, rmdir of its directory works at once, no hidden leftover" 'mkdir d; $PY - <<P
import os,mmap
fd=os.open("d/f",os.O_CREAT|os.O_RDWR); os.write(fd,b"x"*5000); m=mmap.mmap(fd,4096); os.unlink("d/f"); assert os.listdir("d")==[]
os.rmdir("d"); os.pwrite(fd,b"y",5000); m[0:1]=b"z"; m.flush(); os.fsync(fd); assert os.fstat(fd).st_size==5001 and os.fstat(fd).st_nlink==0; os.ftruncate(fd,10); assert os.pread(fd,20,0)==b"z"+b"x"*9
P'
ck R11 "MAP_SHARED writable mmap: map/pwrite/pread coherent both ways, msync, map outlives close (Kafka, RocketMQ, journald)" '$PY - <<P
import os,mmap
fd=os.open("f",os.O_CREAT|os.O_RDWR); os.ftruncate(fd,10485760); m=mmap.mmap(fd,10485760); m[0:4]=b"AAAA"; assert os.pread(fd,4,0)==b"AAAA"
os.pwrite(fd,b"BB",2); assert m[0:4]==b"AABB"; m[9999996:10000000]=b"tail"; m.flush(); os.close(fd); m[4:8]=b"CCCC"; m.flush()
r=open("f","rb"); assert r.read(8)==b"AABBCCCC"; r.seek(9999996); assert r.read(4)==b"tail"
P'
ck R12 "PROT_READ mapping far larger than the file sees later pwrites (bbolt 10 GiB map)" '$PY - <<P
import os,ctypes
libc=ctypes.CDLL(None,use_errno=True); libc.mmap.restype=ctypes.c_void_p; libc.mmap.argtypes=[ctypes.c_void_p,ctypes.c_size_t,ctypes.c_int,ctypes.c_int,ctypes.c_int,ctypes.c_long]
fd=os.open("f",os.O_CREAT|os.O_RDWR); os.write(fd,b"0"*16384); a=libc.mmap(None,10<<30,1,1,fd,0); assert a!=ctypes.c_void_p(-1).value,os.strerror(ctypes.get_errno())
assert ctypes.string_at(a,4)==b"0000"; os.pwrite(fd,b"NEW",0); assert ctypes.string_at(a,3)==b"NEW"; os.pwrite(fd,b"GROW"*1024,16384); os.fdatasync(fd); assert ctypes.string_at(a+16384,4)==b"GROW"
P'
ck R13 "shrink under a live mapping, then remap the new size (Kafka index trim)" '$PY - <<P
import os,mmap
fd=os.open("f",os.O_CREAT|os.O_RDWR); os.ftruncate(fd,1<<20); m=mmap.mmap(fd,1<<20); m[0:8]=b"idxentry"
os.ftruncate(fd,8); n=mmap.mmap(fd,8); assert n[:]==b"idxentry"; n.flush(); os.close(fd); assert os.path.getsize("f")==8 and m[0:8]==b"idxentry"
P'
ck R14 "sendfile to a socket returns exact bytes while another fd appends (Kafka, RabbitMQ streams)" '$PY - <<P
import os,socket
w=os.open("f",os.O_CREAT|os.O_WRONLY); r=os.open("f",os.O_RDONLY); a,b=socket.socketpair(); d=b""
for i in range(150):
    x=bytes([65+i%26])*37; os.write(w,x); d+=x; k=os.sendfile(a.fileno(),r,0,len(d)+99); assert k==len(d),(k,len(d)); g=b""
    while len(g)<k: g+=b.recv(65536)
    assert g==d
P'
ck R15 "size is right at once through every view: fstat other fd, stat path, SEEK_END, listing" '$PY - <<P
import os
w=os.open("f",os.O_CREAT|os.O_RDWR); r=os.open("f",os.O_RDONLY)
for i in range(1,200):
    os.write(w,b"q"*13); n=13*i; assert os.fstat(r).st_size==n==os.stat("f").st_size==os.lseek(r,0,2)
os.ftruncate(w,7); assert os.fstat(r).st_size==7==os.stat("f").st_size
P'
ck R16 "fsync+fdatasync on a directory fd and on an O_RDONLY file fd" 'mkdir d; echo a>d/f; $PY -c "
import os
for p in (\"d\",\"d/f\",\".\"):
    fd=os.open(p,os.O_RDONLY); os.fsync(fd); os.fdatasync(fd); os.close(fd)"; sync -d d/f; sync -f .'
ck R17 "fallocate(0) extends, reads zeros, keeps data (etcd WAL, journald) or says EOPNOTSUPP" 'printf data>f; fallocate -l 6400000 f 2>e || { grep -qi "not supported" e && posix_only=1 || { cat e; exit 1; }; }; [ -n "$posix_only" ] && { echo EOPNOTSUPP; exit 77; }; [ $(stat -c %s f) = 6400000 ] && [ "$(head -c 4 f)" = data ] && cmp -n 6000000 -i 4:0 f /dev/zero'
ck R18 "posix_fallocate works whatever fallocate says" '$PY -c "import os;f=os.open(\"f\",66,0o600);os.posix_fallocate(f,0,3000000);assert os.fstat(f).st_size==3000000"'
ck R19 "fallocate -n (KEEP_SIZE) and -p (PUNCH_HOLE) or EOPNOTSUPP" 'head -c 65536 /dev/urandom>f; fallocate -n -o 65536 -l 1048576 f 2>e && fallocate -p -o 4096 -l 8192 f 2>>e || { grep -qiE "not supported|unsupported" e && { echo EOPNOTSUPP; exit 77; }; cat e; exit 1; }; [ $(stat -c %s f) = 65536 ] && cmp -n 8192 -i 4096:0 f /dev/zero'
ck R20 "POSIX byte-range lock excludes another process, freed by kill -9 (Kafka .lock, KahaDB, beanstalkd, sqlite)" 'touch f; $PY -c "import fcntl,time;f=open(\"f\",\"r+\");fcntl.lockf(f,2,1,0);open(\"rdy\",\"w\");time.sleep(20)" & P=$!; while [ ! -e rdy ]; do sleep .05; done; T="import fcntl;f=open(\"f\",\"r+\");fcntl.lockf(f,2|4,1,%d)"; $PY -c "$(printf "$T" 0)" 2>/dev/null && exit 2; $PY -c "$(printf "$T" 1)" || exit 3; kill -9 $P; wait $P 2>/dev/null; $PY -c "$(printf "$T" 0)"'
ck R21 "OFD lock: conflict between two fds of one process, freed on close (etcd WAL)" '$PY - <<P
import os,fcntl,struct
L=lambda t:struct.pack("hhqqi4x",t,0,0,0,0)
a=os.open("f",66,0o600); b=os.open("f",2); fcntl.fcntl(a,37,L(1))
try: fcntl.fcntl(b,37,L(1)); raise SystemExit("no conflict")
except OSError: pass
os.close(a); fcntl.fcntl(b,37,L(1)); os.rename("f","g"); c=os.open("g",2)
try: fcntl.fcntl(c,37,L(1)); raise SystemExit("lock lost by rename")
except OSError: pass
P'
ck R22 "flock: exclusive, freed by kill -9 (bbolt, logrotate)" 'exec 5>f; flock -n 5 || exit 1; (exec 5>&-; flock -n f true) && exit 2; exec 5>&-; flock f sleep 20 & P=$!; sleep .3; flock -n f true && exit 3; pkill -9 -P $P; kill -9 $P; wait $P 2>/dev/null; sleep .2; flock -n f true'
ck R23 "readdir: 2000 names, none lost or doubled, also while unlinking" 'seq -f f%g 2000|xargs touch; [ $(ls -U|wc -l) = 2000 ] && [ $(ls -U|sort -u|wc -l) = 2000 ] && find . -type f -delete && [ -z "$(ls -A)" ]'
ck R24 "d_type given or DT_UNKNOWN handled; find -type works" 'mkdir d; touch f; ln -s f l; [ "$(find . -mindepth 1 -type d)" = ./d ] && [ "$(find . -type f)" = ./f ] && [ "$(find . -type l)" = ./l ]'
ck R25 "mode bits persist: create 0400 and write, chmod 0400, umask (erlang cookie, beanstalkd, KRaft snapshot)" 'umask 027; $PY -c "import os;f=os.open(\"a\",65,0o400);os.write(f,b\"x\")"; touch b; echo c>c; chmod 0400 c; mkdir m; [ "$(stat -c %a a b c m|xargs)" = "400 640 400 750" ]'
ck R26 "mtime/utimens: set with ns, moves on write, not on read, stable over close (KahaDB lock check, log cleaner)" 'echo a>f; touch -d "2020-01-02 03:04:05.123456789" f; [ "$(stat -c %y f|cut -c1-29)" = "2020-01-02 03:04:05.123456789" ] && cat f>/dev/null && [ $(stat -c %Y f) = $(date -d "2020-01-02 03:04:05" +%s) ] && echo b>>f && [ $(( $(date +%s) - $(stat -c %Y f) )) -le 2 ] && A=$(stat -c %y f) && sleep 1.1 && [ "$A" = "$(stat -c %y f)" ]'
ck R27 "statfs gives real numbers (RabbitMQ alarm, nats default limit, RocketMQ/BookKeeper disk checks)" 'set -- $(stat -f -c "%b %a %S %l %c" .); [ $1 -gt 0 ] && [ $2 -gt 0 ] && [ $(( $2 * $3 )) -gt 100000000 ] && [ $4 -ge 255 ] && df -kP . | tail -1 | grep -qE " [0-9]+%"'
ck R28 "hard link (BookKeeper compaction, rsync -H)" 'echo a>f; ln f g; echo b>>g; [ "$(cat f)" = "$(cat g)" ] && [ $(stat -c %h f) = 2 ] && rm f && [ $(stat -c %h g) = 1 ]'
ck R29 "symlink, readlink, realpath, O_NOFOLLOW" 'echo a>f; ln -s f l; [ "$(readlink l)" = f ] && [ "$(realpath l)" = "$(pwd -P)/f" ] && ! $PY -c "import os;os.open(\"l\",os.O_NOFOLLOW)" 2>/dev/null'
ck R30 "O_DIRECT aligned write+read, mixed with buffered read (BookKeeper, Redpanda, Artemis AIO)" 'head -c 65536 /dev/urandom>s; dd if=s of=f bs=4096 oflag=direct conv=notrunc 2>e || { cat e; exit 1; }; cmp s f && dd if=f of=o bs=4096 iflag=direct 2>e && cmp s o && dd if=/dev/zero of=f bs=4096 seek=3 count=1 oflag=direct conv=notrunc 2>e && cmp -n 4096 -i 12288:0 f /dev/zero'
ck R31 "O_DSYNC / O_SYNC writes (nats meta files, BookKeeper)" 'dd if=/dev/zero of=f bs=512 count=8 oflag=dsync 2>e && dd if=/dev/zero of=f bs=512 count=8 oflag=sync,append conv=notrunc 2>e && [ $(stat -c %s f) = 8192 ]'
ck R32 "link count / inode number stable over rename and reopen (tail -F, logrotate, pid files)" 'echo a>f; A=$(stat -c %d:%i f); mv f g; cat g >/dev/null; mkdir d; mv g d/h; [ "$A" = "$(stat -c %d:%i d/h)" ] && ( exec 5<d/h; [ "$A" = "$(stat -L -c %d:%i /proc/self/fd/5)" ] )'
ck R33 "renameat2 NOREPLACE (mv -n of coreutils 9) and EXCHANGE (desirable)" 'echo a>a; echo b>b; mv -n a b; [ "$(cat a)$(cat b)" = ab ] || exit 1; $PY - <<P
import ctypes,sys
l=ctypes.CDLL(None,use_errno=True); r=l.renameat2(-100,b"a",-100,b"b",2)
if r: print("EXCHANGE errno",ctypes.get_errno()); sys.exit(77 if ctypes.get_errno() in (22,95,38) else 1)
P'
ck R34 "rename directory over an empty directory; refuse over non-empty" 'mkdir a b c; touch a/f c/x; mv -T a b && [ -e b/f ] && ! mv -T b c 2>/dev/null && [ -e b/f ]'
ck R35 "odd names: \$G, @, ~, =, %, space, non-UTF-8, 255 bytes; 256 refused with ENAMETOOLONG" 'for n in "\$G" "rabbit@vm" "a=b%2F" "x y" ".lock" $(printf "\377\376") $(printf "n%.0s" $(seq 255)); do echo 1 >"$n" && [ "$(cat "$n")" = 1 ] || exit 1; done; ! touch $(printf "n%.0s" $(seq 256)) 2>e && grep -q "too long" e; [ $(ls -A|wc -l) = 8 ]'
ck R36 "offsets past 4 GiB" 'printf Z|dd of=f bs=1 seek=5368709120 conv=notrunc 2>/dev/null; [ $(stat -c %s f) = 5368709121 ] && [ "$(tail -c 1 f)" = Z ]'
ck R37 "st_blocks counts only what is stored; st_blksize 4096 or more (Artemis AIO alignment)" 'truncate -s 1G f; printf x|dd of=f bs=1 seek=1000000 conv=notrunc 2>/dev/null; sync f; [ $(stat -c %b f) -lt 4096 ] && [ $(stat -c %o f) -ge 512 ]'
ck R38 "signal storm (Go SIGURG, JVM): no EINTR, no short write, no lost rename/fsync" '$PY - <<P
import os,signal,threading,time
signal.signal(signal.SIGURG,lambda *a:None); signal.siginterrupt(signal.SIGURG,False)
pid=os.getpid(); stop=False; tid=threading.main_thread().ident
def storm():
    while not stop: signal.pthread_kill(tid,signal.SIGURG); time.sleep(0.0003)
t=threading.Thread(target=storm,daemon=True); t.start(); libc=__import__("ctypes").CDLL(None,use_errno=True); import ctypes
fd=os.open("f",os.O_CREAT|os.O_RDWR); buf=b"k"*300000; bad=[]
for i in range(60):
    n=libc.pwrite(fd,buf,len(buf),ctypes.c_long(0)); n!=len(buf) and bad.append(("pwrite",n,ctypes.get_errno()))
    libc.fsync(fd)!=0 and bad.append(("fsync",ctypes.get_errno())); open("t","w").close()
    libc.rename(b"t",b"u")!=0 and bad.append(("rename",ctypes.get_errno())); g=libc.open(b"u",0); g<0 and bad.append(("open",ctypes.get_errno())); g>=0 and libc.close(g)!=0 and bad.append(("close",ctypes.get_errno()))
stop=True; assert not bad,bad[:3]
P'
ck R39 "copy_file_range, SEEK_HOLE/SEEK_DATA, FICLONE refused cleanly (cp, cat, rsync -S)" 'head -c 300000 /dev/urandom>a; cat a>b; cmp a b && cp --reflink=auto a c && cmp a c && truncate -s 20M a && printf E|dd of=a bs=1 seek=15000000 conv=notrunc 2>/dev/null && cp --sparse=always a d && cmp a d && cp --sparse=auto a e && cmp a e'
ck R40 "user xattr and ACL: works, or EOPNOTSUPP (never EIO); cp -a and rsync -aX still succeed" 'echo a>f; $PY -c "
import os,errno
try: os.setxattr(\"f\",\"user.k\",b\"v\"); assert os.getxattr(\"f\",\"user.k\")==b\"v\" and \"user.k\" in os.listxattr(\"f\"); os.removexattr(\"f\",\"user.k\")
except OSError as e: assert e.errno in (errno.EOPNOTSUPP,errno.ENOSYS),e"; cp -a f g && { ! command -v rsync >/dev/null || rsync -aX f h; }'
ck R41 "non-root user can work; new files belong to the caller (needs root to test; allow_other)" '[ $(id -u) = 0 ] || exit 77; mkdir -m 755 d; chown nobody d; chmod 711 .. . ; setpriv --reuid=nobody --regid=nogroup --clear-groups bash -c "cd $PWD/d && umask 077 && echo a>f && mkdir s && echo b>s/g && mv s t && chmod 400 f && cat f t/g >/dev/null && ! chown root f 2>/dev/null && ! touch ../nope 2>/dev/null" && [ "$(stat -c %U:%a d/f d/t d/t/g|xargs)" = "nobody:400 nobody:700 nobody:600" ]'
ck R42 "chown/chgrp by root, setgid directory inheritance" '[ $(id -u) = 0 ] || exit 77; mkdir d; chgrp daemon d; chmod 2775 d; touch d/f; [ $(stat -c %G d/f) = daemon ] && chown nobody:daemon d/f && [ $(stat -c %U d/f) = nobody ]'
ck R43 "many open files: 3000 fds on distinct files, all usable" 'ulimit -n 4096; $PY -c "
import os
f=[os.open(\"f%d\"%i,66,0o600) for i in range(3000)]
for i,x in enumerate(f): os.write(x,b\"%d\"%i)
assert os.pread(f[1234],9,0)==b\"1234\""'
ck R44 "parallel pwrite to disjoint ranges of one file" '$PY - <<P
import os,threading
fd=os.open("f",66,0o600)
def w(k):
    for i in range(100): os.pwrite(fd,bytes([k])*1000,(i*8+k)*1000)
t=[threading.Thread(target=w,args=(k,)) for k in range(8)]; [x.start() for x in t]; [x.join() for x in t]
d=open("f","rb").read(); assert len(d)==800000 and all(d[j*1000:(j+1)*1000]==bytes([j%8])*1000 for j in range(800))
P'
ck R45 "advice calls accepted: fadvise, sync_file_range, readahead (RabbitMQ, Redis, BookKeeper)" '$PY -c "
import os,ctypes
f=os.open(\"f\",66,0o600); os.write(f,b\"a\"*100000)
for a in range(6): os.posix_fadvise(f,0,0,a)
l=ctypes.CDLL(None,use_errno=True); assert l.sync_file_range(f,ctypes.c_long(0),ctypes.c_long(65536),2)==0,ctypes.get_errno(); assert os.pread(f,3,0)==b\"aaa\""'
ck R46 "O_TMPFILE (desirable)" '$PY -c "
import os,sys
try: f=os.open(\".\",os.O_TMPFILE|os.O_RDWR,0o600)
except OSError as e: print(e.errno); sys.exit(77 if e.errno in (95,21,38) else 1)"'
ck R47 "mmap store survives MAP_SHARED write past the old EOF page after ftruncate grow" '$PY - <<P
import os,mmap
fd=os.open("f",66,0o600); os.write(fd,b"a"*100); m=mmap.mmap(fd,4096) if 0 else None; os.ftruncate(fd,12288); m=mmap.mmap(fd,12288); m[100:12288]=b"b"*12188; m.flush(); assert open("f","rb").read()==b"a"*100+b"b"*12188
P'
ck R48 "sqlite WAL + rollback journal + integrity (mmap shm, byte-range locks, dir fsync)" 'command -v sqlite3 >/dev/null || exit 77; sqlite3 w.db "pragma journal_mode=wal; create table t(a); insert into t values(1); pragma wal_checkpoint(truncate);" | grep -q wal && sqlite3 r.db "create table t(a); insert into t values(1); vacuum;" && [ "$(sqlite3 w.db "pragma integrity_check")" = ok ]'
ck R49 "access(2): R_OK/W_OK/X_OK truthful (ZooKeeper, Kafka canRead, RabbitMQ)" 'touch f; chmod 600 f; test -r f -a -w f && mkdir d && test -r d -a -w d -a -x d && { [ $(id -u) != 0 ] || ! setpriv --reuid=nobody --regid=nogroup --clear-groups test -r f; }'
ck R50 "EXCL race: only one of 8 creators wins" 'for i in 1 2 3 4 5 6 7 8; do ( set -C; { echo $i > one; } 2>/dev/null && echo w >> won ) & done; wait; [ $(wc -l < won) = 1 ]'
cd "$D"; rm -rf "$W"; echo "$N checks, $F failed"; exit $F
