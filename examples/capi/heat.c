/* The heat equation on a line of cells, of which each rank has a part. Neighbours exchange the cells at their ends. */
#include <Python.h>

#include "shmring/capi.h"

static const shmring_api *api;

/* One step, without the GIL: 0, or the code of the call that failed. cells[0] and cells[n + 1] are the neighbours'. */
static int step(shmring_comm *comm, double *cells, int64_t n, shmring_plan *sum, double *total) {
    int rank = api->comm_rank(comm), last = api->comm_size(comm) - 1, code = 0;
    double before, here;
    cells[0] = cells[1];
    cells[n + 1] = cells[n];
    if (rank < last)
        code = api->sendrecv(comm, &cells[n], 1, SHMRING_FLOAT64, rank + 1, 0, &cells[n + 1], 1, SHMRING_FLOAT64,
                             rank + 1, SHMRING_ANY_TAG, SHMRING_DEFAULT_TIMEOUT, NULL);
    if (rank > 0 && !code)
        code = api->sendrecv(comm, &cells[1], 1, SHMRING_FLOAT64, rank - 1, 0, &cells[0], 1, SHMRING_FLOAT64,
                             rank - 1, SHMRING_ANY_TAG, SHMRING_DEFAULT_TIMEOUT, NULL);
    if (code) return code;
    before = cells[0];
    *total = 0;
    for (int64_t i = 1; i <= n; ++i) {
        here = cells[i];
        cells[i] += 0.25 * (before - 2 * here + cells[i + 1]);
        before = here;
        *total += cells[i];
    }
    return api->plan_run(sum); /* in place on *total, over all ranks */
}

/* diffuse(comm, cells, steps) -> the heat of all cells of all ranks */
static PyObject *diffuse(PyObject *self, PyObject *args) {
    PyObject *object;
    Py_buffer view;
    Py_ssize_t steps;
    shmring_comm *comm = NULL;
    shmring_plan *sum = NULL;
    double total = 0;
    int code;
    shmring_call call = {sizeof(call), SHMRING_KIND_ALL_REDUCE, SHMRING_FLOAT64, SHMRING_SUM, 0,
                         &total, &total, 1, SHMRING_DEFAULT_TIMEOUT};
    if (!PyArg_ParseTuple(args, "Ow*n", &object, &view, &steps)) return NULL;
    code = api->comm_open(object, &comm);
    if (!code) code = api->plan_make(comm, &call, &sum);
    Py_BEGIN_ALLOW_THREADS
    while (!code && steps-- > 0) code = step(comm, (double *)view.buf, view.len / 8 - 2, sum, &total);
    Py_END_ALLOW_THREADS
    if (code) PyErr_Format(PyExc_RuntimeError, "%s: %s", api->last_error()->name, api->last_error()->text);
    api->plan_release(sum);
    api->comm_release(comm);
    PyBuffer_Release(&view);
    return code ? NULL : PyFloat_FromDouble(total);
}

static PyMethodDef methods[] = {{"diffuse", diffuse, METH_VARARGS, NULL}, {NULL, NULL, 0, NULL}};
static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, "heat", NULL, -1, methods, NULL, NULL, NULL, NULL};

PyMODINIT_FUNC PyInit_heat(void) {
    api = shmring_import();
    return api ? PyModule_Create(&module) : NULL;
}
