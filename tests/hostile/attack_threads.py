"""Threads that use the same objects, while another thread closes and aborts them."""

import random
import threading
import time

from script import Script


def attack(script, case):
    """Threads make random steps on common objects; the main thread ends objects meanwhile."""
    rng = script.rng
    script.open()
    script.has_signals = False  # an interrupt could end the joining below
    over = threading.Event()
    threads = []
    for number in range(rng.choice((1, 2, 3))):
        other = Script(random.Random(rng.random()), script.log, hostility=0.1)
        other.label, other.has_signals = f"[thread {number}] ", False
        other.names.update(script.names)
        other.own = list(script.own)
        threads.append((other, threading.Thread(target=work, args=(other, over), name=f"thread {number}")))
    for _, thread in threads:
        thread.start()
    for _ in range(8):
        time.sleep(rng.random() * 0.005)
        name = rng.choice(script.own)
        ends = [end for end in ("close", "abort") if hasattr(script.names[name], end)]
        if ends:
            script.step(f"{name}.{rng.choice(ends)}()")
    over.set()
    for other, thread in threads:
        thread.join()
        script.defects += other.defects
        other.drop()


def work(script, over):
    """Random steps until the end; each has a timeout."""
    while not over.is_set():
        script.random_step()
