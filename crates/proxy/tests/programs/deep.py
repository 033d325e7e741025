"""Uses working directories deeper than PATH_MAX. The arguments are the folder and the backend: `fuse` or `memory`."""

import ctypes
import errno
import os
import subprocess
import sys

folder, backend = sys.argv[1:]
libc = ctypes.CDLL(None, use_errno=True)
GETCWD = {"x86_64": 79, "aarch64": 17}[os.uname().machine]


def check(what, seen, expected):
    if seen != expected:
        print(f"{what}: {seen!r}, not {expected!r}")
        sys.exit(1)


def kernel_getcwd(size):
    """The system call: its result, or the name of its error."""
    buffer = ctypes.create_string_buffer(max(size, 1))
    length = libc.syscall(GETCWD, buffer, ctypes.c_size_t(size))
    return length if length >= 0 else errno.errorcode[ctypes.get_errno()]


os.chdir(folder)
check("shallow", kernel_getcwd(16384), len(folder) + 1)
check("small buffer", kernel_getcwd(2), "ERANGE")
name = "d" * 200
for depth in range(40):
    os.mkdir(name)
    os.chdir(name)
expected = folder + f"/{name}" * 40
check("deep", kernel_getcwd(16384), "ENAMETOOLONG")
check("deep, small buffer", kernel_getcwd(2), "ENAMETOOLONG")
# The C library searches for the inode of each directory in its parent. Descriptors without FUSE have other inodes.
if backend == "fuse":
    check("library", os.getcwd(), expected)
with open("file", "w") as file:
    file.write("from the deep")
with open("file") as file:
    check("read", file.read(), "from the deep")
check("list", os.listdir("."), ["file"])
check("size", os.stat("file").st_size, 13)
check("absolute", os.path.exists(expected + "/file"), False)
os.symlink("file", "link")
check("link", os.stat("link").st_size, 13)
check("child", subprocess.call(["test", "-e", "file"]), 0)
check("child", subprocess.call(["test", "-e", "missing"]), 1)
os.remove("link")
for depth in range(40):
    os.rename("file", "../file")
    os.chdir("..")
    os.rmdir(name)
os.rename("file", "left")
check("shallow again", kernel_getcwd(16384), len(folder) + 1)
print("done")
