"""Threads that share out work: all is done once, failures come back, nothing is left over."""

import gc
import threading

import numpy as np
import pytest
import threadpoolctl

from headstart.engines.embedded.workers import Workers, physical_cores


@pytest.mark.parametrize("num_threads", [1, 2, 4])
@pytest.mark.parametrize("num_tasks", [0, 1, 2, 9])
def test_every_task_runs_once(num_threads, num_tasks):
    """However many threads there are; `run` returns when all are done."""
    workers, done = Workers(num_threads), []
    for _ in range(20):
        workers.run([lambda i=i: done.append(i) for i in range(num_tasks)])
        assert sorted(done) == list(range(num_tasks))
        done.clear()


def test_tasks_run_side_by_side():
    """Two tasks that wait for each other finish only if both run at once."""
    meeting = threading.Barrier(2, timeout=60)
    Workers(2).run([meeting.wait, meeting.wait])


def test_a_task_s_failure_comes_back_and_the_workers_go_on():
    """The caller gets the exception; the next run is not affected."""

    def fail():
        raise ZeroDivisionError

    workers, done = Workers(3), []
    for position in range(4):
        tasks = [lambda: None] * 4
        tasks[position] = fail
        with pytest.raises(ZeroDivisionError):
            workers.run(tasks)
    workers.run([lambda: done.append(1)] * 5)
    assert len(done) == 5


@pytest.mark.parametrize("num_threads", [1, 2, 3])
@pytest.mark.parametrize("shape", [(1, 7, 300), (8, 64, 1000), (3, 5, 20)])
def test_a_product_is_the_same_however_many_threads_share_it(num_threads, shape):
    """Also with a matrix that is stored the other way round."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal(shape[:2]).astype(np.float32)
    w = rng.standard_normal(shape[1:]).astype(np.float32)
    workers = Workers(num_threads)
    for matrix in (w, np.ascontiguousarray(w.T).T):
        assert np.allclose(workers.matmul(x, matrix), x @ w, atol=1e-4)
    assert workers.matmul(x[:0], w).shape == (0, shape[2])


def test_threads_end_with_the_object():
    """Nothing keeps running for workers that nobody uses."""
    before = set(threading.enumerate())
    workers = Workers(3)
    mine = set(threading.enumerate()) - before
    assert len(mine) == 2
    del workers
    gc.collect()
    for thread in mine:
        thread.join(60)
        assert not thread.is_alive()


def test_blas_is_left_one_thread():
    """Its own threads would spin against these."""
    Workers(1)
    libraries = [lib for lib in threadpoolctl.threadpool_info() if lib["user_api"] == "blas"]
    assert all(lib["num_threads"] == 1 for lib in libraries)


def test_a_core_is_counted_once():
    """At least one, at most the processors that this process may use."""
    assert physical_cores() >= 1
