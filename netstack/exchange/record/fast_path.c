/* The innermost steps for single records in C. fast_path.py is the reference, and documents every name.

   Rules: memory is accessed only through a held Py_buffer, below a bound that was checked in the same call. No Python
   code runs between a check and the write that it allows. All but the plain cases are left to Python code: `slowly`,
   `wait`, or the deserializer's general path, which also raises the errors. */

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <structmember.h>
#include <string.h>

#define PREFIX_BYTES 4
#define RUN_HEAD_BYTES 8
#define RUN_FLAG 0x80000000u

typedef enum { NO_KIND, BYTES, STR, INT64, FLOAT64 } Kind;

/* Returns NO_KIND for any other name; -1 with an error if it is not a str. */
static int
kind_named(PyObject *name)
{
    static const char *const names[] = {"", "bytes", "str", "int64", "float64"};
    if (!PyUnicode_Check(name)) {
        PyErr_SetString(PyExc_TypeError, "a kind is a str");
        return -1;
    }
    for (int kind = BYTES; kind <= FLOAT64; kind++) {
        if (PyUnicode_CompareWithASCIIString(name, names[kind]) == 0) {
            return kind;
        }
    }
    return NO_KIND;
}

typedef struct {
    PyTypeObject *pen, *emitter, *decoded, *next, *iterator, *eager;
} State;

static struct PyModuleDef cells_module;

static inline void
store_length(unsigned char *at, Py_ssize_t length)
{
    at[0] = (unsigned char)(length >> 24);
    at[1] = (unsigned char)(length >> 16);
    at[2] = (unsigned char)(length >> 8);
    at[3] = (unsigned char)length;
}

static inline uint32_t
load_length(const unsigned char *at)
{
    return (uint32_t)at[0] << 24 | (uint32_t)at[1] << 16 | (uint32_t)at[2] << 8 | at[3];
}

/* Encodes a number to 8 bytes; returns 0 if the record is not of this kind. */
static inline int
number_of(Kind kind, PyObject *record, unsigned char *payload)
{
    if (kind == INT64 && PyLong_CheckExact(record)) {
        int overflow;
        uint64_t value = (uint64_t)PyLong_AsLongLongAndOverflow(record, &overflow);
        for (int i = 0; i < 8; i++) {
            payload[i] = (unsigned char)(value >> 8 * i);
        }
        return !overflow;
    }
    return kind == FLOAT64 && PyFloat_CheckExact(record) &&
           PyFloat_Pack8(PyFloat_AS_DOUBLE(record), (char *)payload, 1) == 0;
}

/* The deallocator of the types that only have to clear their references. */
static void
clear_and_free(PyObject *self)
{
    PyTypeObject *type = Py_TYPE(self);
    PyObject_GC_UnTrack(self);
    type->tp_clear(self);
    type->tp_free(self);
    Py_DECREF(type);
}

/* ---------------------------------------------------------------------------------------------------- RecordPen */

typedef struct {
    PyObject_HEAD
    Py_buffer memory; /* held for the life of the pen */
    Py_ssize_t start; /* the owner's commit */
    Py_ssize_t at;    /* where the next record is written; not below start */
    Py_ssize_t limit; /* each record must end below; at most memory.len; -1: closed */
    Py_ssize_t most;  /* number of records that may still be written without `put` */
    Py_ssize_t records;
} RecordPen;

/* Pens are not tracked by the garbage collector, which would clear a memoryview whose buffer a pen holds. */

/* Writes the length of the next record; returns where its payload goes, or NULL if it does not fit. */
static inline unsigned char *
pen_place(RecordPen *self, Py_ssize_t size)
{
    if (self->limit - self->at <= PREFIX_BYTES || size >= self->limit - self->at - PREFIX_BYTES || size > INT32_MAX) {
        return NULL;
    }
    unsigned char *place = (unsigned char *)self->memory.buf + self->at;
    store_length(place, size);
    self->at += PREFIX_BYTES + size;
    self->records++;
    return place + PREFIX_BYTES;
}

static PyObject *
pen_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"memory", NULL};
    PyObject *memory;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O:RecordPen", names, &memory)) {
        return NULL;
    }
    RecordPen *self = (RecordPen *)type->tp_alloc(type, 0);
    if (self == NULL) {
        return NULL;
    }
    self->limit = -1;
    if (PyObject_GetBuffer(memory, &self->memory, PyBUF_WRITABLE) < 0) {
        Py_DECREF(self);
        return NULL;
    }
    return (PyObject *)self;
}

static void
pen_dealloc(RecordPen *self)
{
    PyTypeObject *type = Py_TYPE(self);
    PyBuffer_Release(&self->memory);
    type->tp_free(self);
    Py_DECREF(type);
}

static PyObject *
put_payload(RecordPen *self, PyObject *payload, Py_ssize_t most)
{
    Py_buffer view;
    if (PyObject_GetBuffer(payload, &view, PyBUF_SIMPLE) < 0) {
        return NULL;
    }
    unsigned char *place = pen_place(self, view.len);
    if (place != NULL) {
        memmove(place, view.buf, view.len);
        self->most = most - 1;
    }
    PyBuffer_Release(&view);
    return PyBool_FromLong(place != NULL);
}

/* Sets the range for the next records; -1 with an error if it is outside the memory. */
static int
pen_set_range(RecordPen *self, Py_ssize_t start, Py_ssize_t limit)
{
    if (start < 0 || limit > self->memory.len) {
        PyErr_Format(PyExc_ValueError, "bytes [%zd, %zd) of a buffer of %zd bytes", start, limit, self->memory.len);
        return -1;
    }
    self->start = self->at = start;
    self->limit = limit;
    self->records = 0;
    return 0;
}

static PyObject *
pen_open(RecordPen *self, PyObject *args)
{
    PyObject *payload;
    Py_ssize_t most, start, limit;
    if (!PyArg_ParseTuple(args, "Onnn:open", &payload, &most, &start, &limit) ||
        pen_set_range(self, start, limit) < 0) {
        return NULL;
    }
    PyObject *is_written = put_payload(self, payload, most);
    if (is_written != Py_True) {
        self->limit = -1;
    }
    return is_written;
}

static PyObject *
pen_begin(RecordPen *self, PyObject *args)
{
    Py_ssize_t start, limit;
    if (!PyArg_ParseTuple(args, "nn:begin", &start, &limit) || pen_set_range(self, start, limit) < 0) {
        return NULL;
    }
    self->most = 0;
    Py_RETURN_NONE;
}

static PyObject *
pen_put(RecordPen *self, PyObject *args)
{
    PyObject *payload;
    Py_ssize_t most;
    if (!PyArg_ParseTuple(args, "On:put", &payload, &most)) {
        return NULL;
    }
    return put_payload(self, payload, most);
}

static PyObject *
pen_settle(RecordPen *self, PyObject *Py_UNUSED(ignored))
{
    Py_ssize_t written = self->at - self->start;
    self->start = self->at;
    self->limit = -1;
    self->records = 0;
    return PyLong_FromSsize_t(written);
}

static PyObject *
pen_written(RecordPen *self, void *Py_UNUSED(closure))
{
    return PyLong_FromSsize_t(self->at - self->start);
}

static PyMethodDef pen_methods[] = {
    {"begin", (PyCFunction)pen_begin, METH_VARARGS, NULL},
    {"open", (PyCFunction)pen_open, METH_VARARGS, NULL},
    {"put", (PyCFunction)pen_put, METH_VARARGS, NULL},
    {"settle", (PyCFunction)pen_settle, METH_NOARGS, NULL},
    {NULL},
};
static PyMemberDef pen_members[] = {{"records", T_PYSSIZET, offsetof(RecordPen, records), READONLY, NULL}, {NULL}};
static PyGetSetDef pen_getset[] = {{"written", (getter)pen_written, NULL, NULL, NULL}, {NULL}};
static PyType_Slot pen_slots[] = {
    {Py_tp_new, pen_new},         {Py_tp_dealloc, pen_dealloc}, {Py_tp_methods, pen_methods},
    {Py_tp_members, pen_members}, {Py_tp_getset, pen_getset},   {0, NULL},
};
static PyType_Spec pen_spec = {
    "netstack.exchange.record.fast_path.RecordPen", sizeof(RecordPen), 0, Py_TPFLAGS_DEFAULT, pen_slots,
};

/* ------------------------------------------------------------------------------------------------------ Emitter */

typedef struct {
    PyObject_HEAD
    vectorcallfunc call;
    PyTypeObject *pen_type;
    PyObject *pens, *encode, *select, *refused, *again, *slowly;
    Py_ssize_t slot;
    Kind kind;
} Emitter;

/* Returns the pen of a slot, borrowed; NULL if it may not write. */
static inline RecordPen *
open_pen(Emitter *self, Py_ssize_t slot)
{
    if (slot < 0 || slot >= PyList_GET_SIZE(self->pens)) {
        return NULL;
    }
    PyObject *pen = PyList_GET_ITEM(self->pens, slot);
    if (!Py_IS_TYPE(pen, self->pen_type) || ((RecordPen *)pen)->most <= 0) {
        return NULL;
    }
    return (RecordPen *)pen;
}

static PyObject *
emit(PyObject *callable, PyObject *const *args, size_t nargsf, PyObject *kwnames)
{
    Emitter *self = (Emitter *)callable;
    if (PyVectorcall_NARGS(nargsf) != 1 || (kwnames != NULL && PyTuple_GET_SIZE(kwnames))) {
        PyErr_SetString(PyExc_TypeError, "give one record");
        return NULL;
    }
    PyObject *record = args[0], *payload = NULL, *result = NULL;
    const void *data = NULL;
    unsigned char number[8];
    Py_ssize_t size = 0;
    switch (self->kind) {
    case BYTES:
        if (PyBytes_CheckExact(record)) {
            data = PyBytes_AS_STRING(record);
            size = PyBytes_GET_SIZE(record);
        }
        break;
    case STR:
        if (PyUnicode_CheckExact(record) && PyUnicode_IS_ASCII(record)) {
            data = PyUnicode_DATA(record);
            size = PyUnicode_GET_LENGTH(record);
        }
        break;
    default:
        if (number_of(self->kind, record, number)) {
            data = number;
            size = 8;
        }
        break;
    }
    if (data == NULL) {
        payload = PyErr_Occurred() ? NULL : PyObject_CallOneArg(self->encode, record);
        if (payload == NULL) {
            return NULL;
        }
        if (PyBytes_CheckExact(payload)) {
            data = PyBytes_AS_STRING(payload);
            size = PyBytes_GET_SIZE(payload);
        }
    }
    Py_ssize_t slot = self->slot;
    if (slot < 0) {
        PyObject *select = PyList_GET_SIZE(self->refused) ? self->again : self->select;
        PyObject *chosen = PyObject_CallOneArg(select, record);
        if (chosen == NULL) {
            goto done;
        }
        slot = PyNumber_AsSsize_t(chosen, PyExc_IndexError);
        Py_DECREF(chosen);
        if (slot == -1 && PyErr_Occurred()) {
            goto done;
        }
    }
    RecordPen *pen = data == NULL ? NULL : open_pen(self, slot);
    unsigned char *place = pen == NULL ? NULL : pen_place(pen, size);
    if (place != NULL) {
        memcpy(place, data, size);
        pen->most--;
        result = Py_NewRef(Py_True);
        goto done;
    }
    if (payload == NULL) { /* as the Python code encodes it */
        payload = self->kind == BYTES ? Py_NewRef(record) : PyBytes_FromStringAndSize(data, size);
        if (payload == NULL) {
            return NULL;
        }
    }
    PyObject *number_of_slot = PyLong_FromSsize_t(slot);
    if (number_of_slot != NULL) {
        PyObject *given[] = {record, payload, number_of_slot};
        result = PyObject_Vectorcall(self->slowly, given, 3, NULL);
        Py_DECREF(number_of_slot);
    }
done:
    Py_XDECREF(payload);
    return result;
}

static int
emitter_clear(Emitter *self)
{
    Py_CLEAR(self->pen_type);
    Py_CLEAR(self->pens);
    Py_CLEAR(self->encode);
    Py_CLEAR(self->select);
    Py_CLEAR(self->refused);
    Py_CLEAR(self->again);
    Py_CLEAR(self->slowly);
    return 0;
}

static int
emitter_traverse(Emitter *self, visitproc visit, void *arg)
{
    Py_VISIT(Py_TYPE(self));
    Py_VISIT(self->pen_type);
    Py_VISIT(self->pens);
    Py_VISIT(self->encode);
    Py_VISIT(self->select);
    Py_VISIT(self->refused);
    Py_VISIT(self->again);
    Py_VISIT(self->slowly);
    return 0;
}

static PyMemberDef emitter_members[] = {
    {"__vectorcalloffset__", T_PYSSIZET, offsetof(Emitter, call), READONLY, NULL},
    {NULL},
};
static PyType_Slot emitter_slots[] = {
    {Py_tp_call, PyVectorcall_Call},
    {Py_tp_clear, emitter_clear},
    {Py_tp_traverse, emitter_traverse},
    {Py_tp_dealloc, clear_and_free},
    {Py_tp_members, emitter_members},
    {0, NULL},
};
static PyType_Spec emitter_spec = {
    "netstack.exchange.record.fast_path.Emitter", sizeof(Emitter), 0,
    Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_HAVE_VECTORCALL | Py_TPFLAGS_DISALLOW_INSTANTIATION,
    emitter_slots,
};

/* ------------------------------------------------------------------------------- DecodedRecords and RecordIterator */

typedef struct {
    PyObject_HEAD
    PyObject *elements; /* a list, or NULL */
    Py_ssize_t position;
} DecodedRecords;

static PyObject *
decoded_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {NULL};
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, ":DecodedRecords", names)) {
        return NULL;
    }
    return type->tp_alloc(type, 0);
}

static PyObject *
decoded_put(DecodedRecords *self, PyObject *elements)
{
    if (!PyList_Check(elements)) {
        PyErr_Format(PyExc_TypeError, "a list of elements, not %.200s", Py_TYPE(elements)->tp_name);
        return NULL;
    }
    self->position = 0;
    Py_XSETREF(self->elements, Py_NewRef(elements));
    Py_RETURN_NONE;
}

/* Returns the next element; NULL without an error if there is none. */
static PyObject *
decoded_next(DecodedRecords *self)
{
    PyObject *elements = self->elements;
    if (elements == NULL) {
        return NULL;
    }
    if (self->position < PyList_GET_SIZE(elements)) {
        return Py_NewRef(PyList_GET_ITEM(elements, self->position++));
    }
    Py_CLEAR(self->elements);
    return NULL;
}

static PyObject *
decoded_length_hint(DecodedRecords *self, PyObject *Py_UNUSED(ignored))
{
    return PyLong_FromSsize_t(self->elements == NULL ? 0 : PyList_GET_SIZE(self->elements) - self->position);
}

static int
decoded_traverse(DecodedRecords *self, visitproc visit, void *arg)
{
    Py_VISIT(Py_TYPE(self));
    Py_VISIT(self->elements);
    return 0;
}

static int
decoded_clear(DecodedRecords *self)
{
    Py_CLEAR(self->elements);
    return 0;
}

static PyMethodDef decoded_methods[] = {
    {"put", (PyCFunction)decoded_put, METH_O, NULL},
    {"__length_hint__", (PyCFunction)decoded_length_hint, METH_NOARGS, NULL},
    {NULL},
};
static PyType_Slot decoded_slots[] = {
    {Py_tp_new, decoded_new},         {Py_tp_dealloc, clear_and_free},  {Py_tp_traverse, decoded_traverse},
    {Py_tp_clear, decoded_clear},     {Py_tp_methods, decoded_methods}, {Py_tp_iter, PyObject_SelfIter},
    {Py_tp_iternext, decoded_next},   {0, NULL},
};
static PyType_Spec decoded_spec = {
    "netstack.exchange.record.fast_path.DecodedRecords", sizeof(DecodedRecords), 0,
    Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC, decoded_slots,
};

/* The awaitable of `__anext__` and of an eager function. When awaited it takes a decoded element, or calls `attempt`. If
   neither succeeds, it runs the coroutine of `wait`. */
typedef struct {
    PyObject_HEAD
    PyObject *decoded, *attempt; /* one of them is NULL */
    PyObject *argument;        /* of `attempt` and `wait` */
    PyObject *wait;
    PyObject *inner; /* the coroutine of `wait`, if it was needed */
    PyObject *stop;  /* the exception with the result, reused from CPython 3.12 on */
    int is_over;
} Next;

/* Returns a result without waiting; NULL without an error if there is none. */
static PyObject *
next_at_once(Next *self)
{
    PyObject *found = NULL;
    if (self->attempt == NULL) {
        return decoded_next((DecodedRecords *)self->decoded);
    }
    PyObject *argument = Py_NewRef(self->argument);
    PyObject *is_done = PyObject_CallOneArg(self->attempt, argument);
    Py_DECREF(argument);
    if (is_done != NULL && PyObject_IsTrue(is_done) > 0) {
        found = Py_NewRef(Py_None);
    }
    Py_XDECREF(is_done);
    return found;
}

static int
next_wait(Next *self)
{
    Py_CLEAR(self->stop); /* it would keep the last element alive while waiting */
    self->inner = self->argument == NULL ? PyObject_CallNoArgs(self->wait)
                                         : PyObject_CallOneArg(self->wait, self->argument);
    Py_CLEAR(self->argument);
    return self->inner == NULL ? -1 : 0;
}

static PySendResult
next_send(Next *self, PyObject *value, PyObject **result)
{
    *result = NULL;
    if (self->inner == NULL) {
        if (self->is_over) {
            PyErr_SetString(PyExc_RuntimeError, "cannot reuse already awaited coroutine");
            return PYGEN_ERROR;
        }
        self->is_over = 1; /* also if `attempt` awaits this object again */
        *result = next_at_once(self);
        if (*result != NULL || PyErr_Occurred() || next_wait(self) < 0) {
            Py_CLEAR(self->argument);
            return *result != NULL ? PYGEN_RETURN : PYGEN_ERROR;
        }
    }
    PyObject *inner = Py_NewRef(self->inner);
    PySendResult sent = PyIter_Send(inner, value, result);
    Py_DECREF(inner);
    if (sent != PYGEN_NEXT) {
        Py_CLEAR(self->inner);
    }
    return sent;
}

/* Raises the result, which it takes over, as StopIteration: the end of an iterator that is awaited. */
static PyObject *
stop_with(Next *self, PyObject *result)
{
#if PY_VERSION_HEX >= 0x030C0000
    /* Here `await` calls this for each element, and creating an exception costs three times the rest. */
    if (self->stop == NULL || Py_REFCNT(self->stop) != 1) {
        Py_XSETREF(self->stop, PyObject_CallNoArgs(PyExc_StopIteration));
    }
    if (self->stop == NULL) {
        Py_DECREF(result);
        return NULL;
    }
    Py_XSETREF(((PyStopIterationObject *)self->stop)->value, result);
    Py_CLEAR(((PyBaseExceptionObject *)self->stop)->traceback);
    PyErr_SetRaisedException(Py_NewRef(self->stop));
#else
    PyObject *stop = PyObject_CallOneArg(PyExc_StopIteration, result);
    if (stop != NULL) {
        PyErr_SetObject(PyExc_StopIteration, stop);
        Py_DECREF(stop);
    }
    Py_DECREF(result);
#endif
    return NULL;
}

/* As `next_send`, but as a method of a generator. */
static PyObject *
next_send_method(Next *self, PyObject *value)
{
    PyObject *result;
    return next_send(self, value, &result) == PYGEN_RETURN ? stop_with(self, result) : result;
}

static PyObject *
next_iternext(Next *self)
{
    return next_send_method(self, Py_None);
}

static PyObject *
next_throw(Next *self, PyObject *args)
{
    if (self->inner == NULL) { /* as for a coroutine that has not started */
        if (self->is_over) {
            PyErr_SetString(PyExc_RuntimeError, "cannot reuse already awaited coroutine");
            return NULL;
        }
        self->is_over = 1;
        if (next_wait(self) < 0) {
            return NULL;
        }
    }
    PyObject *inner = Py_NewRef(self->inner);
    PyObject *method = PyObject_GetAttrString(inner, "throw");
    PyObject *result = method == NULL ? NULL : PyObject_Call(method, args, NULL);
    Py_XDECREF(method);
    Py_DECREF(inner);
    if (result == NULL) {
        Py_CLEAR(self->inner);
    }
    return result;
}

static PyObject *
next_close(Next *self, PyObject *Py_UNUSED(ignored))
{
    PyObject *inner = self->inner;
    self->inner = NULL;
    self->is_over = 1;
    Py_CLEAR(self->argument);
    if (inner == NULL) {
        Py_RETURN_NONE;
    }
    PyObject *result = PyObject_CallMethod(inner, "close", NULL);
    Py_DECREF(inner);
    return result;
}

static int
next_traverse(Next *self, visitproc visit, void *arg)
{
    Py_VISIT(Py_TYPE(self));
    Py_VISIT(self->decoded);
    Py_VISIT(self->attempt);
    Py_VISIT(self->argument);
    Py_VISIT(self->wait);
    Py_VISIT(self->inner);
    Py_VISIT(self->stop);
    return 0;
}

/* As the interpreter does for a coroutine: without `await` the record would be lost silently. */
static void
warn_if_not_awaited(Next *self)
{
    if (self->argument != NULL && !self->is_over) {
        PyObject *type, *value, *trace;
        PyErr_Fetch(&type, &value, &trace);
        if (PyErr_WarnFormat(PyExc_RuntimeWarning, 1, "%R was never awaited: its record was not written", self->wait)) {
            PyErr_WriteUnraisable(self->wait);
        }
        PyErr_Restore(type, value, trace);
    }
}

static int
next_clear(Next *self)
{
    Py_CLEAR(self->decoded);
    Py_CLEAR(self->attempt);
    Py_CLEAR(self->argument);
    Py_CLEAR(self->wait);
    Py_CLEAR(self->inner);
    Py_CLEAR(self->stop);
    return 0;
}

static void
next_dealloc(Next *self)
{
    PyTypeObject *type = Py_TYPE(self);
    PyObject_GC_UnTrack(self);
    if (self->wait != NULL) { /* else the garbage collector has cleared it */
        warn_if_not_awaited(self);
    }
    next_clear(self);
    type->tp_free(self);
    Py_DECREF(type);
}

static PyMethodDef next_methods[] = {
    {"send", (PyCFunction)next_send_method, METH_O, NULL},
    {"throw", (PyCFunction)next_throw, METH_VARARGS, NULL},
    {"close", (PyCFunction)next_close, METH_NOARGS, NULL},
    {NULL},
};
static PyType_Slot next_slots[] = {
    {Py_tp_dealloc, next_dealloc},     {Py_tp_traverse, next_traverse},   {Py_tp_clear, next_clear},
    {Py_tp_methods, next_methods},     {Py_tp_iter, PyObject_SelfIter}, {Py_tp_iternext, next_iternext},
    {Py_am_await, PyObject_SelfIter},  {Py_am_send, next_send},           {0, NULL},
};
static PyType_Spec next_spec = {
    "netstack.exchange.record.fast_path.Next", sizeof(Next), 0,
    Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_DISALLOW_INSTANTIATION, next_slots,
};

/* Creates these awaitables: an iterator over decoded elements, or an eager function. */
typedef struct {
    PyObject_HEAD
    vectorcallfunc call;
    PyTypeObject *next_type;
    PyObject *decoded, *attempt, *wait;
    Next *spare; /* reused when it has no other references */
} RecordIterator;

static PyObject *
iterator_anext(RecordIterator *self)
{
    Next *next = self->spare;
    if (next != NULL && Py_REFCNT(next) == 1) {
        Py_INCREF(next);
        warn_if_not_awaited(next);
        Py_CLEAR(next->argument);
        Py_CLEAR(next->inner);
        next->is_over = 0;
        return (PyObject *)next;
    }
    next = (Next *)self->next_type->tp_alloc(self->next_type, 0);
    if (next == NULL) {
        return NULL;
    }
    next->decoded = Py_XNewRef(self->decoded);
    next->attempt = Py_XNewRef(self->attempt);
    next->wait = Py_NewRef(self->wait);
    Next *before = self->spare;
    self->spare = (Next *)Py_NewRef((PyObject *)next);
    Py_XDECREF((PyObject *)before);
    return (PyObject *)next;
}

static PyObject *
call_eagerly(PyObject *callable, PyObject *const *args, size_t nargsf, PyObject *kwnames)
{
    Py_ssize_t named = kwnames == NULL ? 0 : PyTuple_GET_SIZE(kwnames);
    if (PyVectorcall_NARGS(nargsf) + named != 1 ||
        (named && PyUnicode_CompareWithASCIIString(PyTuple_GET_ITEM(kwnames, 0), "record"))) {
        PyErr_SetString(PyExc_TypeError, "give one record");
        return NULL;
    }
    PyObject *next = iterator_anext((RecordIterator *)callable);
    if (next != NULL) {
        Py_XSETREF(((Next *)next)->argument, Py_NewRef(args[0]));
    }
    return next;
}

static int
iterator_traverse(RecordIterator *self, visitproc visit, void *arg)
{
    Py_VISIT(Py_TYPE(self));
    Py_VISIT(self->next_type);
    Py_VISIT(self->decoded);
    Py_VISIT(self->attempt);
    Py_VISIT(self->wait);
    Py_VISIT(self->spare);
    return 0;
}

static int
iterator_clear(RecordIterator *self)
{
    Py_CLEAR(self->next_type);
    Py_CLEAR(self->decoded);
    Py_CLEAR(self->attempt);
    Py_CLEAR(self->wait);
    Py_CLEAR(self->spare);
    return 0;
}

static PyObject *iterator_new(PyTypeObject *type, PyObject *args, PyObject *kwargs);

static PyType_Slot iterator_slots[] = {
    {Py_tp_new, iterator_new},           {Py_tp_dealloc, clear_and_free}, {Py_tp_traverse, iterator_traverse},
    {Py_tp_clear, iterator_clear},       {Py_am_aiter, PyObject_SelfIter}, {Py_am_anext, iterator_anext},
    {0, NULL},
};
static PyType_Spec iterator_spec = {
    "netstack.exchange.record.fast_path.RecordIterator", sizeof(RecordIterator), 0,
    Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC, iterator_slots,
};

static PyMemberDef eager_members[] = {
    {"__vectorcalloffset__", T_PYSSIZET, offsetof(RecordIterator, call), READONLY, NULL},
    {NULL},
};
static PyType_Slot eager_slots[] = {
    {Py_tp_call, PyVectorcall_Call},
    {Py_tp_dealloc, clear_and_free},
    {Py_tp_traverse, iterator_traverse},
    {Py_tp_clear, iterator_clear},
    {Py_tp_members, eager_members},
    {0, NULL},
};
static PyType_Spec eager_spec = {
    "netstack.exchange.record.fast_path.Eager", sizeof(RecordIterator), 0,
    Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_HAVE_VECTORCALL | Py_TPFLAGS_DISALLOW_INSTANTIATION,
    eager_slots,
};

/* -------------------------------------------------------------------------------------------- Records from memory */

/* Decodes a payload; NULL without an error if it is not of this kind, NULL with an error if out of memory. */
static inline PyObject *
record_of(Kind kind, const unsigned char *payload, Py_ssize_t size)
{
    uint64_t number = 0;
    PyObject *record;
    switch (kind) {
    case BYTES:
        return PyBytes_FromStringAndSize((const char *)payload, size);
    case STR:
        record = PyUnicode_DecodeUTF8((const char *)payload, size, NULL);
        if (record == NULL && PyErr_ExceptionMatches(PyExc_UnicodeDecodeError)) {
            PyErr_Clear();
        }
        return record;
    case INT64:
        if (size != 8) {
            return NULL;
        }
        for (int i = 0; i < 8; i++) {
            number |= (uint64_t)payload[i] << 8 * i;
        }
        return PyLong_FromLongLong((int64_t)number);
    case FLOAT64:
        return size == 8 ? PyFloat_FromDouble(PyFloat_Unpack8((const char *)payload, 1)) : NULL;
    default:
        return NULL;
    }
}

static inline int
append_record(PyObject *elements, Kind kind, const unsigned char *payload, Py_ssize_t size)
{
    PyObject *record = record_of(kind, payload, size);
    if (record == NULL) {
        return 0;
    }
    Py_ssize_t count = PyList_GET_SIZE(elements);
    if (count < ((PyListObject *)elements)->allocated) { /* gives the reference away; a call for each is slower */
        PyList_SET_ITEM(elements, count, record);
        Py_SET_SIZE(elements, count + 1);
        return 1;
    }
    int failed = PyList_Append(elements, record);
    Py_DECREF(record);
    return !failed;
}

static PyObject *
split(PyObject *args, int is_run)
{
    PyObject *memory, *name, *elements;
    Py_ssize_t position, most, head = 0;
    const char *format = is_run ? "OnnUO!:split_run" : "OnnUO!n:split_cells";
    if (!PyArg_ParseTuple(args, format, &memory, &position, &most, &name, &PyList_Type, &elements, &head)) {
        return NULL;
    }
    int kind = kind_named(name);
    if (kind < 0) {
        return NULL;
    }
    Py_buffer view;
    if (PyObject_GetBuffer(memory, &view, PyBUF_SIMPLE) < 0) {
        return NULL;
    }
    if (position < 0 || position > view.len || most < is_run || head < 0) {
        PyErr_SetString(PyExc_ValueError, "position or length out of range");
        PyBuffer_Release(&view);
        return NULL;
    }
    const unsigned char *start = view.buf;
    if (is_run) {
        while (view.len - position >= most && append_record(elements, kind, start + position, most)) {
            position += most;
        }
    } else {
        while (view.len - position >= PREFIX_BYTES) {
            Py_ssize_t size = load_length(start + position);
            const unsigned char *payload = start + position + PREFIX_BYTES;
            if (size > most || size > view.len - position - PREFIX_BYTES || size < head || (head && payload[0]) ||
                !append_record(elements, kind, payload + head, size - head)) {
                break;
            }
            position += PREFIX_BYTES + size;
        }
    }
    PyBuffer_Release(&view);
    return PyErr_Occurred() ? NULL : PyLong_FromSsize_t(position);
}

static PyObject *
split_cells(PyObject *Py_UNUSED(module), PyObject *args)
{
    return split(args, 0);
}

static PyObject *
split_run(PyObject *Py_UNUSED(module), PyObject *args)
{
    return split(args, 1);
}

/* --------------------------------------------------------------------------------------------- Records into memory */

/* The framed cells of one slot. */
typedef struct {
    Py_ssize_t slot, cells, size;
    PyObject *data; /* a bytes object, of which `size` bytes are written */
} Share;

/* Writes the length of a share's next cell; returns where its payload goes, or NULL with an error if out of memory. */
static inline unsigned char *
share_place(Share *share, Py_ssize_t size)
{
    Py_ssize_t room = PyBytes_GET_SIZE(share->data), end = share->size + PREFIX_BYTES + size;
    if (end > room && _PyBytes_Resize(&share->data, 2 * (end > room ? end : room)) < 0) {
        return NULL;
    }
    unsigned char *place = (unsigned char *)PyBytes_AS_STRING(share->data) + share->size;
    store_length(place, size);
    share->size = end;
    share->cells++;
    return place + PREFIX_BYTES;
}

/* Returns the slot of a record; -1 with an error if it is out of range. */
static Py_ssize_t
slot_of(PyObject *slots, Py_ssize_t index, Py_ssize_t channels)
{
    PyObject *number = PyList_Check(slots) ? PyList_GET_ITEM(slots, index) : slots;
    Py_ssize_t slot = PyLong_CheckExact(number) ? PyLong_AsSsize_t(number) : -1;
    if (slot < 0 || slot >= channels) {
        PyErr_Clear();
        PyErr_Format(PyExc_ValueError, "slot %R of %zd", number, channels);
        return -1;
    }
    return slot;
}

/* Appends a record to its share; returns 0 if it is not plain, -1 with an error. */
static inline int
share_record(Share *share, Kind kind, PyObject *record, Py_ssize_t most)
{
    PyObject *text = NULL;
    const void *data;
    unsigned char number[8];
    Py_ssize_t size = 8;
    switch (kind) {
    case BYTES:
        if (!PyBytes_CheckExact(record)) {
            return 0;
        }
        data = PyBytes_AS_STRING(record);
        size = PyBytes_GET_SIZE(record);
        break;
    case STR:
        if (!PyUnicode_CheckExact(record)) {
            return 0;
        }
        if (PyUnicode_IS_COMPACT_ASCII(record)) {
            data = PyUnicode_DATA(record);
            size = PyUnicode_GET_LENGTH(record);
            break;
        }
        text = PyUnicode_AsUTF8String(record);
        if (text == NULL) {
            if (!PyErr_ExceptionMatches(PyExc_UnicodeEncodeError)) {
                return -1;
            }
            PyErr_Clear();
            return 0;
        }
        data = PyBytes_AS_STRING(text);
        size = PyBytes_GET_SIZE(text);
        break;
    default:
        if (!number_of(kind, record, number)) {
            return PyErr_Occurred() ? -1 : 0;
        }
        data = number;
    }
    int done = size <= most;
    if (done) {
        unsigned char *place = share_place(share, size);
        if (place == NULL) {
            done = -1;
        } else {
            memcpy(place, data, size);
        }
    }
    Py_XDECREF(text);
    return done;
}

static PyObject *
shares_as_list(Share *shares, Py_ssize_t count)
{
    PyObject *found = PyList_New(count);
    for (Py_ssize_t i = 0; found != NULL && i < count; i++) {
        PyObject *share = NULL;
        if (_PyBytes_Resize(&shares[i].data, shares[i].size) == 0) {
            share = Py_BuildValue("nnO", shares[i].slot, shares[i].cells, shares[i].data);
        }
        if (share == NULL) {
            Py_CLEAR(found);
        } else {
            PyList_SET_ITEM(found, i, share);
        }
    }
    return found;
}

/* No Python code runs between the first record and the last, so the lists do not change. */
static PyObject *
framed_cells(PyObject *Py_UNUSED(module), PyObject *args)
{
    PyObject *records, *name, *slots, *result = NULL;
    Py_ssize_t channels, most;
    if (!PyArg_ParseTuple(args, "O!UOnn:framed_cells", &PyList_Type, &records, &name, &slots, &channels, &most)) {
        return NULL;
    }
    int kind = kind_named(name);
    if (kind <= 0) {
        return kind < 0 ? NULL : Py_NewRef(Py_None);
    }
    Py_ssize_t count = PyList_GET_SIZE(records);
    if (channels < 0 || channels > INT32_MAX || (PyList_Check(slots) && PyList_GET_SIZE(slots) != count)) {
        PyErr_SetString(PyExc_ValueError, "give a slot for each record");
        return NULL;
    }
    Py_ssize_t most_shares = count < channels ? count : channels, used = 0;
    int32_t *places = PyMem_Calloc(channels + 1, sizeof(int32_t)); /* by slot: index of its share plus 1 */
    Share *shares = PyMem_Malloc((most_shares + 1) * sizeof(Share));
    if (places == NULL || shares == NULL) {
        PyErr_NoMemory();
        goto done;
    }
    int written = 1;
    for (Py_ssize_t index = 0; index < count && written >= 0; index++) {
        Py_ssize_t slot = slot_of(slots, index, channels);
        if (slot < 0) {
            goto done;
        }
        if (!written) {
            continue; /* a record is not plain, but a wrong slot is still an error */
        }
        if (!places[slot]) {
            Share *share = &shares[used];
            share->slot = slot;
            share->cells = share->size = 0;
            share->data = PyBytes_FromStringAndSize(NULL, 16 * (count / most_shares) + 48);
            if (share->data == NULL) {
                goto done;
            }
            places[slot] = (int32_t)++used;
        }
        written = share_record(&shares[places[slot] - 1], kind, PyList_GET_ITEM(records, index), most);
    }
    if (written >= 0) {
        result = written ? shares_as_list(shares, used) : Py_NewRef(Py_None);
    }
done:
    for (Py_ssize_t i = 0; i < used; i++) {
        Py_XDECREF(shares[i].data);
    }
    PyMem_Free(shares);
    PyMem_Free(places);
    return result;
}

static PyObject *
cells_within(PyObject *Py_UNUSED(module), PyObject *args)
{
    PyObject *data;
    Py_ssize_t start, stop, count = 0;
    if (!PyArg_ParseTuple(args, "Snn:cells_within", &data, &start, &stop)) {
        return NULL;
    }
    if (start < 0 || start > stop || stop > PyBytes_GET_SIZE(data)) {
        PyErr_Format(PyExc_ValueError, "bytes [%zd, %zd) of %zd", start, stop, PyBytes_GET_SIZE(data));
        return NULL;
    }
    const unsigned char *memory = (const unsigned char *)PyBytes_AS_STRING(data);
    while (stop - start >= PREFIX_BYTES) {
        Py_ssize_t size = load_length(memory + start);
        if (size > stop - start - PREFIX_BYTES) {
            break;
        }
        start += PREFIX_BYTES + size;
        count++;
    }
    return Py_BuildValue("nn", start, count);
}

/* ------------------------------------------------------------------------------------------- Batches, and their keys */

/* Reads a number of a list; returns whether it is a non-negative int. */
static inline int
number_at(PyObject *list, Py_ssize_t index, Py_ssize_t *number)
{
    PyObject *found = PyList_GET_ITEM(list, index);
    *number = PyLong_CheckExact(found) ? PyLong_AsSsize_t(found) : -1;
    return *number >= 0;
}

static PyObject *
write_shares(PyObject *module, PyObject *args)
{
    PyTypeObject *pen_type = ((State *)PyModule_GetState(module))->pen;
    PyObject *pens, *slots, *counts, *body;
    Py_ssize_t index, offset, width, slot, count;
    int has_runs;
    if (!PyArg_ParseTuple(args, "O!O!O!nOnnp:write_shares", &PyList_Type, &pens, &PyList_Type, &slots, &PyList_Type,
                          &counts, &index, &body, &offset, &width, &has_runs)) {
        return NULL;
    }
    Py_ssize_t shares = PyList_GET_SIZE(slots), unit = has_runs ? width : PREFIX_BYTES + width;
    Py_buffer view;
    if (PyObject_GetBuffer(body, &view, PyBUF_SIMPLE) < 0) {
        return NULL;
    }
    int is_right = index >= 0 && index <= shares && offset >= 0 && offset <= view.len && width >= has_runs &&
                   width <= INT32_MAX && PyList_GET_SIZE(counts) == shares;
    for (; is_right && index < shares; index++) {
        if (!number_at(slots, index, &slot) || !number_at(counts, index, &count) || count > INT32_MAX ||
            slot >= PyList_GET_SIZE(pens) || count > (view.len - offset) / unit) {
            is_right = 0;
            break;
        }
        if (!count) {
            continue;
        }
        RecordPen *pen = (RecordPen *)PyList_GET_ITEM(pens, slot);
        Py_ssize_t size = count * unit, head = !has_runs ? 0 : count == 1 ? PREFIX_BYTES : RUN_HEAD_BYTES;
        if (!Py_IS_TYPE((PyObject *)pen, pen_type) || pen->limit - pen->at <= head + size) {
            break;
        }
        unsigned char *place = (unsigned char *)pen->memory.buf + pen->at;
        if (head) {
            store_length(place, head == PREFIX_BYTES ? width : (Py_ssize_t)(RUN_FLAG | (uint32_t)count));
            store_length(place + head - PREFIX_BYTES, width);
        }
        memcpy(place + head, (const char *)view.buf + offset, size);
        pen->at += head + size;
        pen->records += count;
        offset += size;
    }
    PyBuffer_Release(&view);
    if (!is_right) {
        PyErr_Clear();
        PyErr_SetString(PyExc_ValueError, "give a slot and a number of records for each share, and their bytes");
        return NULL;
    }
    return Py_BuildValue("nn", index, offset);
}

static PyObject *
copy_runs(PyObject *Py_UNUSED(module), PyObject *args)
{
    PyObject *memory, *rows;
    Py_ssize_t position, width, row, count = 0;
    Py_buffer from, into;
    if (!PyArg_ParseTuple(args, "OnnOn:copy_runs", &memory, &position, &width, &rows, &row) ||
        PyObject_GetBuffer(memory, &from, PyBUF_SIMPLE) < 0) {
        return NULL;
    }
    if (PyObject_GetBuffer(rows, &into, PyBUF_WRITABLE) < 0) {
        PyBuffer_Release(&from);
        return NULL;
    }
    int is_right = width > 0 && position >= 0 && position <= from.len && row >= 0 && row <= into.len / width;
    while (is_right && from.len - position >= RUN_HEAD_BYTES) {
        const unsigned char *head = (const unsigned char *)from.buf + position;
        Py_ssize_t run = (Py_ssize_t)load_length(head) - (Py_ssize_t)RUN_FLAG;
        if (run <= 0 || load_length(head + PREFIX_BYTES) != width ||
            run > (from.len - position - RUN_HEAD_BYTES) / width || run > into.len / width - row - count) {
            break;
        }
        memcpy((char *)into.buf + (row + count) * width, head + RUN_HEAD_BYTES, run * width);
        position += RUN_HEAD_BYTES + run * width;
        count += run;
    }
    PyBuffer_Release(&into);
    PyBuffer_Release(&from);
    if (!is_right) {
        PyErr_SetString(PyExc_ValueError, "position, width or row out of range");
        return NULL;
    }
    return Py_BuildValue("nn", position, count);
}

/* Implements `keygroups.murmur`. */
static inline uint32_t
murmur(uint32_t x)
{
    x *= 0xCC9E2D51u;
    x = (x << 15 | x >> 17) * 0x1B873593u;
    x = ((x << 13 | x >> 19) * 5 + 0xE6546B64u) ^ 4;
    x = (x ^ x >> 16) * 0x85EBCA6Bu;
    x = (x ^ x >> 13) * 0xC2B2AE35u;
    x ^= x >> 16;
    return x < 0x80000000u ? x : (0u - x) & 0x7FFFFFFFu;
}

/* Implements `keygroups.stable_hash` for keys of exactly str, bytes, int (64 bits) or None; returns 0 for others. */
static inline int
hash_of(PyObject *key, uint32_t *hash)
{
    uint32_t value = 0;
    if (PyUnicode_CheckExact(key)) {
        Py_ssize_t length = PyUnicode_GET_LENGTH(key);
        if (PyUnicode_READY(key) < 0) {
            return 0;
        }
        const void *data = PyUnicode_DATA(key);
        int kind = PyUnicode_KIND(key);
        if (kind == PyUnicode_1BYTE_KIND) {
            for (Py_ssize_t i = 0; i < length; i++) {
                value = 31 * value + ((const Py_UCS1 *)data)[i];
            }
        } else {
            for (Py_ssize_t i = 0; i < length; i++) {
                Py_UCS4 character = PyUnicode_READ(kind, data, i);
                if (character > 0xFFFF) { /* two units of UTF-16 */
                    value = 31 * value + Py_UNICODE_HIGH_SURROGATE(character);
                    character = Py_UNICODE_LOW_SURROGATE(character);
                }
                value = 31 * value + character;
            }
        }
    } else if (PyLong_CheckExact(key)) {
        int overflow;
        int64_t number = PyLong_AsLongLongAndOverflow(key, &overflow);
        if (overflow) {
            return 0;
        }
        value = (uint32_t)number;
        if (number < INT32_MIN || number > INT32_MAX) {
            value ^= (uint32_t)((uint64_t)number >> 32);
        }
    } else if (PyBytes_CheckExact(key)) {
        const signed char *data = (const signed char *)PyBytes_AS_STRING(key);
        value = 1;
        for (Py_ssize_t i = 0; i < PyBytes_GET_SIZE(key); i++) {
            value = 31 * value + (uint32_t)(int32_t)data[i];
        }
    } else if (key != Py_None) {
        return 0;
    }
    *hash = value;
    return 1;
}

static PyObject *
key_slots(PyObject *Py_UNUSED(module), PyObject *args)
{
    PyObject *keys, *type, *owners, *slowly;
    if (!PyArg_ParseTuple(args, "O!OO!O:key_slots", &PyList_Type, &keys, &type, &PyList_Type, &owners, &slowly)) {
        return NULL;
    }
    Py_ssize_t count = PyList_GET_SIZE(keys), groups = PyList_GET_SIZE(owners);
    if (!groups) {
        PyErr_SetString(PyExc_ValueError, "the list of owners is empty; it has one for each key group");
        return NULL;
    }
    PyObject *slots = PyList_New(count);
    for (Py_ssize_t i = 0; slots != NULL && i < count; i++) {
        uint32_t hash;
        PyObject *slot = NULL, *key = i < PyList_GET_SIZE(keys) ? Py_NewRef(PyList_GET_ITEM(keys, i)) : Py_NewRef(Py_None);
        if (type != Py_None && (PyObject *)Py_TYPE(key) != type) {
            Py_DECREF(key);
            Py_DECREF(slots);
            Py_RETURN_NONE;
        }
        if (hash_of(key, &hash)) {
            slot = Py_NewRef(PyList_GET_ITEM(owners, murmur(hash) % (uint32_t)groups));
        } else {
            slot = PyObject_CallOneArg(slowly, key); /* runs Python code */
            if (slot != NULL && PyList_GET_SIZE(owners) != groups) {
                Py_CLEAR(slot);
                PyErr_SetString(PyExc_RuntimeError, "the owners of key groups changed");
            }
        }
        Py_DECREF(key);
        if (slot == NULL) {
            Py_CLEAR(slots);
        } else {
            PyList_SET_ITEM(slots, i, slot);
        }
    }
    return slots;
}

/* ------------------------------------------------------------------------------------------------------- Module */

static PyObject *
emitter(PyObject *module, PyObject *args)
{
    State *state = PyModule_GetState(module);
    PyObject *pens, *name, *encode, *select, *refused, *again, *slowly;
    Py_ssize_t slot;
    if (!PyArg_ParseTuple(args, "O!UnOOO!OO:emitter", &PyList_Type, &pens, &name, &slot, &encode, &select,
                          &PyList_Type, &refused, &again, &slowly)) {
        return NULL;
    }
    int kind = kind_named(name);
    if (kind < 0) {
        return NULL;
    }
    Emitter *self = (Emitter *)state->emitter->tp_alloc(state->emitter, 0);
    if (self == NULL) {
        return NULL;
    }
    self->call = emit;
    self->pen_type = (PyTypeObject *)Py_NewRef((PyObject *)state->pen);
    self->pens = Py_NewRef(pens);
    self->encode = Py_NewRef(encode);
    self->select = Py_NewRef(select);
    self->refused = Py_NewRef(refused);
    self->again = Py_NewRef(again);
    self->slowly = Py_NewRef(slowly);
    self->slot = slot;
    self->kind = kind;
    return (PyObject *)self;
}

static PyObject *
iterator_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"decoded", "wait", NULL};
    PyObject *module = PyType_GetModuleByDef(type, &cells_module);
    if (module == NULL) {
        return NULL;
    }
    State *state = PyModule_GetState(module);
    PyObject *decoded, *wait;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O!O:RecordIterator", names, state->decoded, &decoded, &wait)) {
        return NULL;
    }
    RecordIterator *self = (RecordIterator *)type->tp_alloc(type, 0);
    if (self == NULL) {
        return NULL;
    }
    self->next_type = (PyTypeObject *)Py_NewRef((PyObject *)state->next);
    self->decoded = Py_NewRef(decoded);
    self->wait = Py_NewRef(wait);
    return (PyObject *)self;
}

static PyObject *
eager(PyObject *module, PyObject *args)
{
    State *state = PyModule_GetState(module);
    PyObject *attempt, *wait;
    if (!PyArg_ParseTuple(args, "OO:eager", &attempt, &wait)) {
        return NULL;
    }
    RecordIterator *self = (RecordIterator *)state->eager->tp_alloc(state->eager, 0);
    if (self == NULL) {
        return NULL;
    }
    self->call = call_eagerly;
    self->next_type = (PyTypeObject *)Py_NewRef((PyObject *)state->next);
    self->attempt = Py_NewRef(attempt);
    self->wait = Py_NewRef(wait);
    return (PyObject *)self;
}

static int
add_type(PyObject *module, PyTypeObject **place, PyType_Spec *spec, int is_public)
{
    *place = (PyTypeObject *)PyType_FromModuleAndSpec(module, spec, NULL);
    return *place == NULL ? -1 : is_public ? PyModule_AddType(module, *place) : 0;
}

static int
cells_exec(PyObject *module)
{
    State *state = PyModule_GetState(module);
    if (add_type(module, &state->pen, &pen_spec, 1) < 0 || add_type(module, &state->emitter, &emitter_spec, 0) < 0 ||
        add_type(module, &state->decoded, &decoded_spec, 1) < 0 || add_type(module, &state->next, &next_spec, 0) < 0 ||
        add_type(module, &state->iterator, &iterator_spec, 1) < 0 ||
        add_type(module, &state->eager, &eager_spec, 0) < 0) {
        return -1;
    }
    return PyModule_AddIntConstant(module, "RUN_LIMIT_BYTES", 1024);
}

static int
cells_traverse(PyObject *module, visitproc visit, void *arg)
{
    State *state = PyModule_GetState(module);
    Py_VISIT(state->pen);
    Py_VISIT(state->emitter);
    Py_VISIT(state->decoded);
    Py_VISIT(state->next);
    Py_VISIT(state->iterator);
    Py_VISIT(state->eager);
    return 0;
}

static int
cells_clear(PyObject *module)
{
    State *state = PyModule_GetState(module);
    Py_CLEAR(state->pen);
    Py_CLEAR(state->emitter);
    Py_CLEAR(state->decoded);
    Py_CLEAR(state->next);
    Py_CLEAR(state->iterator);
    Py_CLEAR(state->eager);
    return 0;
}

static PyMethodDef cells_methods[] = {
    {"eager", eager, METH_VARARGS, NULL},
    {"emitter", emitter, METH_VARARGS, NULL},
    {"copy_runs", copy_runs, METH_VARARGS, NULL},
    {"key_slots", key_slots, METH_VARARGS, NULL},
    {"write_shares", write_shares, METH_VARARGS, NULL},
    {"cells_within", cells_within, METH_VARARGS, NULL},
    {"framed_cells", framed_cells, METH_VARARGS, NULL},
    {"split_cells", split_cells, METH_VARARGS, NULL},
    {"split_run", split_run, METH_VARARGS, NULL},
    {NULL},
};
static PyModuleDef_Slot cells_slots[] = {{Py_mod_exec, cells_exec}, {0, NULL}};
static struct PyModuleDef cells_module = {
    PyModuleDef_HEAD_INIT, "fast_path", NULL, sizeof(State), cells_methods, cells_slots, cells_traverse, cells_clear, NULL,
};

PyMODINIT_FUNC
PyInit_fast_path(void)
{
    return PyModuleDef_Init(&cells_module);
}
