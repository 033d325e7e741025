"""Uses files as programs do. The arguments are the folder and the backend: `fuse` or `memory`."""

import ctypes
import errno
import mmap
import os
import sys

folder, backend = sys.argv[1:]
with_fuse = backend == "fuse"


def check(what, seen, expected):
    if seen != expected:
        print(f"{what}: {seen!r}, not {expected!r}")
        sys.exit(1)


def fails(what, expected, call, *arguments):
    try:
        call(*arguments)
    except OSError as error:
        check(what, errno.errorcode[error.errno], expected)
    else:
        check(what, "success", expected)


def path(name):
    return os.path.join(folder, name)


def read(name):
    with open(path(name)) as file:
        return file.read()


check("read", read("greeting"), "only at the target\n")
fails("missing", "ENOENT", open, path("missing"))
check("stat", os.stat(path("greeting")).st_size, 19)
check("exists", os.path.exists(path("missing")), False)
check("access", os.access(path("greeting"), os.R_OK), True)

with open(path("new"), "w") as file:
    file.write("hello")
check("write", read("new"), "hello")
os.mkdir(path("folder"), 0o750)
check("mkdir", os.stat(path("folder")).st_mode & 0o7777, 0o750)
fails("mkdir again", "EEXIST", os.mkdir, path("folder"))
os.rename(path("new"), path("folder/moved"))
check("rename", (os.path.exists(path("new")), read("folder/moved")), (False, "hello"))
os.symlink("moved", path("folder/link"))
check("readlink", os.readlink(path("folder/link")), "moved")
check("through a link", read("folder/link"), "hello")
os.link(path("folder/moved"), path("folder/hard"))
check("link", os.stat(path("folder/hard")).st_nlink, 2)
check("list", sorted(os.listdir(path("folder"))), ["hard", "link", "moved"])
kinds = sorted((entry.name, entry.is_symlink()) for entry in os.scandir(path("folder")))
check("kinds", kinds, [("hard", False), ("link", True), ("moved", False)])
os.chmod(path("folder/moved"), 0o600)
check("chmod", os.stat(path("folder/moved")).st_mode & 0o7777, 0o600)
os.truncate(path("folder/moved"), 2)
check("truncate", read("folder/moved"), "he")
os.utime(path("folder/moved"), ns=(5_000_000_001, 7_000_000_002))
check("utime", os.stat(path("folder/moved")).st_mtime_ns, 7_000_000_002)
os.setxattr(path("folder/moved"), "user.color", b"red")
check("xattr", os.getxattr(path("folder/moved"), "user.color"), b"red")
check("xattrs", "user.color" in os.listxattr(path("folder/moved")), True)
os.removexattr(path("folder/moved"), "user.color")
fails("no xattr", "ENODATA", os.getxattr, path("folder/moved"), "user.color")
check("statfs", os.statvfs(path("folder")).f_blocks > 0, True)
os.mkfifo(path("pipe"))
fails("pipe", "ENOTSUP", os.open, path("pipe"), os.O_RDONLY | os.O_NONBLOCK)

# A working directory that exists only at the target.
start = os.getcwd()
os.chdir(path("folder"))
check("getcwd", os.getcwd(), path("folder"))
with open("relative", "w") as file:
    file.write("from here")
check("relative", read("folder/relative"), "from here")
os.chdir(start)

# Relative to a descriptor, and the name of a descriptor.
descriptor = os.open(path("folder"), os.O_RDONLY | os.O_DIRECTORY)
check("fstat", os.fstat(descriptor).st_mode & 0o170000, 0o040000)
inner = os.open("relative", os.O_RDONLY, dir_fd=descriptor)
check("openat", os.read(inner, 100), b"from here")
check("name", os.readlink(f"/proc/self/fd/{inner}"), path("folder/relative"))
with open(f"/proc/self/fd/{inner}") as file:
    check("reopened", file.read(), "from here")
os.close(inner)
os.close(descriptor)

# A local link to a remote file.
here = os.path.join(os.environ["SCRATCH"], "link")
os.symlink(path("greeting"), here)
with open(here) as file:
    check("crossing", file.read(), "only at the target\n")

# inotify fails with its own error, not as if the file were missing.
libc = ctypes.CDLL(None, use_errno=True)
watch = libc.inotify_add_watch(libc.inotify_init(), path("greeting").encode(), 2)
check("inotify", (watch, ctypes.get_errno()), (-1, errno.ENOSPC))

with open("/etc/nsswitch.conf") as file:
    check("nsswitch", "\nhosts: files dns\n" in file.read(), True)
check("served stat", os.path.isfile("/etc/nsswitch.conf"), True)
check("served access", os.access("/etc/nsswitch.conf", os.R_OK), True)

# Killed while the file is open: the written bytes are at the target.
child = os.fork()
if child == 0:
    descriptor = os.open(path("killed"), os.O_WRONLY | os.O_CREAT, 0o644)
    os.write(descriptor, b"before the kill")
    os.kill(os.getpid(), 9)
os.waitpid(child, 0)
check("killed", read("killed"), "before the kill")

# A file that gets its name when it is complete.
descriptor = os.open(path("folder"), os.O_RDWR | os.O_TMPFILE, 0o600)
os.write(descriptor, b"unnamed")
check("unnamed", os.pread(descriptor, 10, 2), b"named")
root = os.open("/", os.O_RDONLY)
os.link(f"/proc/self/fd/{descriptor}", path("named"), src_dir_fd=root, follow_symlinks=True)
os.write(descriptor, b" no more")
os.close(descriptor)
check("named", read("named"), "unnamed no more")

if not with_fuse:
    fails("write into", "ENOTSUP", open, path("greeting"), "r+")
    print("done")
    sys.exit(0)

with open(path("greeting"), "r+") as file:
    file.write("ONLY")
check("write into", read("greeting"), "ONLY at the target\n")
both = os.stat(path("greeting"))
with open(path("greeting")) as file:
    own = os.fstat(file.fileno())
check("same file", (own.st_dev, own.st_ino), (both.st_dev, both.st_ino))

with open(path("mapped"), "w+b") as file:
    file.write(b"." * 10_000)
    file.flush()
    with mmap.mmap(file.fileno(), 10_000) as shared:
        check("mapped", shared[4999:5002], b"...")
        shared[5000:5001] = b"!"
    with mmap.mmap(file.fileno(), 10_000, access=mmap.ACCESS_COPY) as private:
        check("mapped again", private[4999:5002], b".!.")
        private[0:1] = b"?"
check("unmapped", read("mapped")[4999:5002], ".!.")
check("private", read("mapped")[0], ".")

# Mapped by a process that is killed.
child = os.fork()
if child == 0:
    with open(path("mapped"), "r+b") as file:
        shared = mmap.mmap(file.fileno(), 10_000)
        shared[7000:7001] = b"#"
        os.kill(os.getpid(), 9)
os.waitpid(child, 0)
check("mapped and killed", read("mapped")[6999:7002], ".#.")

# Many processes append to one file.
children = []
for name in "abcd":
    child = os.fork()
    if child == 0:
        descriptor = os.open(path("log"), os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        for number in range(50):
            os.write(descriptor, f"{name}{number}\n".encode())
        os._exit(0)
    children.append(child)
for child in children:
    os.waitpid(child, 0)
expected = sorted(f"{name}{number}" for name in "abcd" for number in range(50))
check("appended", sorted(read("log").split()), expected)

print("done")
