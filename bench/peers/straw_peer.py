"""straw-queue as a process that obeys: one command a line, one answer a line.

`open` begins a case in a folder of its own, `round` runs it once and answers the seconds that count, `usage` says what lies on disk.
"""

import json
import os
import random
import sys
import threading
import time
from contextlib import nullcontext
from importlib import metadata
from pathlib import Path

from straw import Coordinator, Publication, Record, SharedFilesystemStore, TaskSpec
from straw.backend import FilesystemBackend
from straw.protocol import encode

CALLERS = 32


def open_store(root, profile):
    if profile != "juicefs":
        return SharedFilesystemStore(str(root), "bench", online_gc=False)
    declared = {
        "direct_mount": True,
        "writeback": False,
        "open_cache": 0,
        "readdir_cache": False,
        "client_version": "bench",
        "durability_description": "objects and metadata on a local disk",
    }
    backend = FilesystemBackend(str(root), profile="juicefs", declaration=declared)
    return SharedFilesystemStore(str(root), "bench", online_gc=False, backend=backend)


def at_once(work, count=CALLERS):
    """Seconds from when all threads stand ready until the last is done."""
    ready = threading.Barrier(count + 1)
    failed = []

    def one(i):
        ready.wait()
        try:
            work(i)
        except BaseException as error:  # told to whoever asked
            failed.append(error)

    threads = [threading.Thread(target=one, args=(i,)) for i in range(count)]
    for thread in threads:
        thread.start()
    ready.wait()
    since = time.perf_counter()
    for thread in threads:
        thread.join()
    if failed:
        raise failed[0]
    return time.perf_counter() - since


class Publish:
    """One caller, one record a call."""

    def __init__(self, root, profile, bytes, **_):
        self.store = open_store(root, profile)
        self.payload = random.Random(bytes).randbytes(bytes)
        self.count = 0
        self.store.publish([Record("warm", b"w")], submission_id="warm")

    def round(self, calls):
        since = time.perf_counter()
        for _ in range(calls):
            self.count += 1
            self.store.publish([Record("r", self.payload)], submission_id=f"s{self.count}")
        return time.perf_counter() - since


class Callers:
    """As many callers, each with a writer of its own: one store takes one publish at a time."""

    def __init__(self, root, profile, bytes, **_):
        self.stores = [open_store(root, profile) for _ in range(CALLERS)]
        self.payload = random.Random(bytes).randbytes(bytes)
        self.count = 0
        for store in self.stores:
            store.publish([Record("warm", b"w")], submission_id="warm")

    def round(self, calls):
        self.count += 1

        def work(i):
            for call in range(calls):
                self.stores[i].publish([Record("r", self.payload)], submission_id=f"s{self.count}-{call}")

        return at_once(work)


class Read:
    """Records of 4 KiB, each published by a call of its own, read in no order."""

    def __init__(self, root, profile, bytes, records, **_):
        self.store = open_store(root, profile)
        self.bytes = bytes
        payload = random.Random(bytes).randbytes(bytes)
        self.refs = [self.store.publish([Record("r", payload)], submission_id=f"s{i}") for i in range(records)]

    def round(self, calls, session=False):
        order = [(i * 7919 + 13) % len(self.refs) for i in range(calls)]
        with self.store.read_session() if session else nullcontext(self.store) as reader:
            since = time.perf_counter()
            for i in order:
                for record in reader.read(self.refs[i]):
                    assert len(record.payload) == self.bytes
            return time.perf_counter() - since


class Cycle:
    """lease + complete + acknowledge: `callers` at once lease and complete `each` tasks, then all are acknowledged together."""

    def __init__(self, root, profile, callers, each=1, **_):
        self.store = open_store(root, profile)
        self.queue = Coordinator(self.store, exclusive_owner="bench")
        self.callers = callers
        self.each = each
        self.next = 0
        self.acked = 0
        self.input = self.store.publish([Record("in", b"i" * 64)], submission_id="in")
        state = encode({"version": 1, "processed_positions": [], "finished_batches": []})
        self.state = self.store.publish([Record("p", state, "json.v1")], submission_id="p")
        self.token = self.queue.open_consumer("training", exclusive_owner="bench")

    def submit(self, count):
        tasks = [TaskSpec(f"t{i}", self.input) for i in range(self.next, self.next + count)]
        self.queue.submit_tasks(f"q{self.next}", tasks)
        self.next += count

    def publish(self, leases):
        """Small extents: an extent with many publications makes each of their completions slower."""
        results = []
        for at in range(0, len(leases), 4):
            few = leases[at : at + 4]
            records = [
                Record(l.task_id, b"o" * 64, metadata={"task_id": l.task_id, "attempt_id": l.attempt_id}) for l in few
            ]
            publications = [Publication((record,)) for record in records]
            results += self.store.publish_many(publications, submission_id="out-" + few[0].attempt_id)
        return results

    def complete(self, lease, result):
        self.queue.complete_task(
            lease, submission_id="c" + lease.attempt_id, result_ref=result, result_digest=result.digest
        )

    def round(self, calls):
        spent = 0.0
        n = self.callers * self.each
        for _ in range(calls):
            self.submit(n)
            leases = [None] * n

            def own(caller):
                return range(caller * self.each, (caller + 1) * self.each)

            def lease(caller):
                for i in own(caller):
                    leases[i] = self.queue.acquire(f"w{caller}", 1).assignments[0].lease

            def complete(caller):
                for i in own(caller):
                    self.complete(leases[i], results[i])

            spent += at_once(lease, self.callers)
            results = self.publish(leases)
            spent += at_once(complete, self.callers)
            self.acked += n
            since = time.perf_counter()
            self.queue.save_consumer_state(
                "training",
                token=self.token,
                request_id=f"k{self.acked}",
                state_ref=self.state,
                progress_ref=self.state,
                fetch_cursor=self.acked,
                processed_cursor=self.acked,
            )
            spent += time.perf_counter() - since
        return spent


class Recover(Cycle):
    """A journal of finished tasks is taken over."""

    def __init__(self, root, profile, tasks, **_):
        super().__init__(root, profile, 64)
        while self.next < tasks:
            self.submit(self.callers)
            page = [a.lease for a in self.queue.acquire("w", self.callers).assignments]
            for lease, result in zip(page, self.publish(page)):
                self.complete(lease, result)
        self.queue.close()

    def round(self, calls):
        since = time.perf_counter()
        self.queue = Coordinator(self.store, exclusive_owner="bench", recover=True)
        seconds = time.perf_counter() - since
        self.queue.close()
        return seconds


KINDS = {"publish": Publish, "callers": Callers, "read": Read, "cycle": Cycle, "recover": Recover}


def usage(root):
    files = [path for path in Path(root).rglob("*") if path.is_file()]
    return {"files": len(files), "bytes": sum(path.stat().st_size for path in files)}


def main():
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # what the library prints is no answer
    case, root = None, None
    for line in sys.stdin:
        order = json.loads(line)
        what = order.pop("do")
        try:
            if what == "version":
                answer = {"version": metadata.version("straw-queue")}
            elif what == "open":
                root = order.pop("root")
                os.makedirs(root)
                case = KINDS[order.pop("kind")](root, **order)
                answer = {}
            elif what == "round":
                answer = {"seconds": case.round(**order)}
            else:
                answer = usage(root)
        except Exception as error:
            answer = {"error": f"{type(error).__name__}: {error}"}
        answers.write(json.dumps(answer) + "\n")


main()
