"""A thousand threads that use files of the target at the same time."""

import os
import sys
import threading

folder = sys.argv[1]
threading.stack_size(256 * 1024)
start = threading.Barrier(1000)
problems = []


def work(number):
    start.wait()
    try:
        own = f"{folder}/written/{number}"
        with open(f"{folder}/greeting") as file:
            assert file.read() == "only at the target\n"
        with open(own + ".new", "w") as file:
            file.write(str(number))
        os.rename(own + ".new", own)
        assert os.stat(own).st_size == len(str(number))
        assert not os.path.exists(f"{folder}/missing/{number}")
        with open(own) as file:
            assert file.read() == str(number)
    except Exception as problem:
        problems.append((number, problem))


os.mkdir(f"{folder}/written")
threads = [threading.Thread(target=work, args=(number,)) for number in range(1000)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
print(len(threads), "threads,", problems[:3] or "no problems")
