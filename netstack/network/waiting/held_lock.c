/* Records of a visitor that keeps the lock, in C: held_lock.py is the reference, and documents every name.

   Rules: between the test of `is_wanted` and the call of `try_emit` no Python code runs, so no other thread does. */

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <structmember.h>

typedef struct {
    PyObject_HEAD
    char is_wanted;
    PyObject *give_way;
} Entry;

typedef struct {
    PyObject_HEAD
    char is_active, is_held;
    unsigned long thread;
    PyObject *entry, *claim;
} HeldLock;

typedef struct {
    PyObject_HEAD
    vectorcallfunc call;
    PyObject *held, *try_emit, *unsent, *flush_connections, *refusals;
} Emitter;

typedef struct {
    PyTypeObject *entry, *held, *emitter;
} State;

static struct PyModuleDef held_lock_module;

/* Each type holds object references only in the fields that its traverse function visits. */
#define WITH_REFERENCES(NAME, TYPE, VISIT, CLEAR)                                                                      \
    static int NAME##_traverse(TYPE *self, visitproc visit, void *arg)                                                 \
    {                                                                                                                  \
        Py_VISIT(Py_TYPE(self));                                                                                       \
        VISIT;                                                                                                         \
        return 0;                                                                                                      \
    }                                                                                                                  \
    static int NAME##_clear(TYPE *self)                                                                                \
    {                                                                                                                  \
        CLEAR;                                                                                                         \
        return 0;                                                                                                      \
    }                                                                                                                  \
    static void NAME##_dealloc(TYPE *self)                                                                             \
    {                                                                                                                  \
        PyTypeObject *type = Py_TYPE(self);                                                                            \
        PyObject_GC_UnTrack(self);                                                                                     \
        NAME##_clear(self);                                                                                            \
        type->tp_free(self);                                                                                           \
        Py_DECREF(type);                                                                                               \
    }

WITH_REFERENCES(entry, Entry, Py_VISIT(self->give_way), Py_CLEAR(self->give_way))
WITH_REFERENCES(held, HeldLock, Py_VISIT(self->entry); Py_VISIT(self->claim), Py_CLEAR(self->entry);
                Py_CLEAR(self->claim))
WITH_REFERENCES(emitter, Emitter, Py_VISIT(self->held); Py_VISIT(self->try_emit); Py_VISIT(self->unsent);
                Py_VISIT(self->flush_connections); Py_VISIT(self->refusals), Py_CLEAR(self->held);
                Py_CLEAR(self->try_emit); Py_CLEAR(self->unsent); Py_CLEAR(self->flush_connections);
                Py_CLEAR(self->refusals))

static PyObject *
entry_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"give_way", NULL};
    PyObject *give_way;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O:Entry", names, &give_way)) {
        return NULL;
    }
    Entry *self = (Entry *)type->tp_alloc(type, 0);
    if (self != NULL) {
        self->give_way = Py_NewRef(give_way);
    }
    return (PyObject *)self;
}

static PyObject *
held_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"entry", NULL};
    PyObject *module = PyType_GetModuleByDef(type, &held_lock_module), *entry;
    if (module == NULL || !PyArg_ParseTupleAndKeywords(args, kwargs, "O!:HeldLock", names,
                                                       ((State *)PyModule_GetState(module))->entry, &entry)) {
        return NULL;
    }
    PyObject *claim = PyList_New(0);
    HeldLock *self = claim == NULL ? NULL : (HeldLock *)type->tp_alloc(type, 0);
    if (self == NULL) {
        Py_XDECREF(claim);
        return NULL;
    }
    self->entry = Py_NewRef(entry);
    self->claim = claim;
    return (PyObject *)self;
}

/* What `emit` does while the holder is active. */
static PyObject *
emit_inside(Emitter *self, HeldLock *held, PyObject *record)
{
    if (((Entry *)held->entry)->is_wanted || !held->is_held || held->thread != PyThread_get_thread_ident()) {
        return Py_NewRef(Py_False);
    }
    PyObject *is_written = PyObject_CallOneArg(self->try_emit, record);
    if (is_written != NULL && PyDict_GET_SIZE(self->unsent)) {
        PyObject *done = PyObject_CallNoArgs(self->flush_connections);
        if (done == NULL) {
            Py_CLEAR(is_written);
        }
        Py_XDECREF(done);
    }
    if (is_written == NULL && PyErr_ExceptionMatches(self->refusals)) {
        PyErr_Clear(); /* the call that follows raises it */
        return Py_NewRef(Py_False);
    }
    return is_written;
}

static PyObject *
emit(PyObject *callable, PyObject *const *args, size_t nargsf, PyObject *kwnames)
{
    Emitter *self = (Emitter *)callable;
    if (PyVectorcall_NARGS(nargsf) != 1 || (kwnames != NULL && PyTuple_GET_SIZE(kwnames))) {
        PyErr_SetString(PyExc_TypeError, "give one record");
        return NULL;
    }
    HeldLock *held = (HeldLock *)self->held;
    Entry *entry = (Entry *)held->entry;
    if (held->is_active) {
        Py_RETURN_FALSE;
    }
    held->is_active = 1;
    PyObject *is_written = emit_inside(self, held, args[0]);
    held->is_active = 0;
    if (entry->is_wanted) {
        PyObject *type, *value, *trace;
        PyErr_Fetch(&type, &value, &trace);
        PyObject *done = PyObject_CallOneArg(entry->give_way, (PyObject *)held);
        if (done == NULL) { /* Ctrl-C, which takes the place of another error */
            Py_CLEAR(is_written);
            Py_XDECREF(type);
            Py_XDECREF(value);
            Py_XDECREF(trace);
            return NULL;
        }
        Py_DECREF(done);
        PyErr_Restore(type, value, trace);
    }
    return is_written;
}

static PyObject *
holding_emitter(PyObject *module, PyObject *args)
{
    State *state = PyModule_GetState(module);
    PyObject *held, *try_emit, *unsent, *flush_connections;
    if (!PyArg_ParseTuple(args, "O!OO!O:holding_emitter", state->held, &held, &try_emit, &PyDict_Type, &unsent,
                          &flush_connections)) {
        return NULL;
    }
    PyObject *errors = PyImport_ImportModule("netstack.base.errors");
    if (errors == NULL) {
        return NULL;
    }
    PyObject *refused = PyObject_GetAttrString(errors, "LocalProtocolError");
    PyObject *destroyed = refused == NULL ? NULL : PyObject_GetAttrString(errors, "PoolDestroyed");
    PyObject *refusals = destroyed == NULL ? NULL : PyTuple_Pack(2, refused, destroyed);
    Py_DECREF(errors);
    Py_XDECREF(refused);
    Py_XDECREF(destroyed);
    Emitter *self = refusals == NULL ? NULL : (Emitter *)state->emitter->tp_alloc(state->emitter, 0);
    if (self == NULL) {
        Py_XDECREF(refusals);
        return NULL;
    }
    self->call = emit;
    self->held = Py_NewRef(held);
    self->try_emit = Py_NewRef(try_emit);
    self->unsent = Py_NewRef(unsent);
    self->flush_connections = Py_NewRef(flush_connections);
    self->refusals = refusals;
    return (PyObject *)self;
}

/* ------------------------------------------------------------------------------------------------------- Module */

static PyMemberDef entry_members[] = {
    {"is_wanted", T_BOOL, offsetof(Entry, is_wanted), 0, NULL},
    {"give_way", T_OBJECT_EX, offsetof(Entry, give_way), READONLY, NULL},
    {NULL},
};
static PyMemberDef held_members[] = {
    {"entry", T_OBJECT_EX, offsetof(HeldLock, entry), READONLY, NULL},
    {"is_active", T_BOOL, offsetof(HeldLock, is_active), 0, NULL},
    {"is_held", T_BOOL, offsetof(HeldLock, is_held), 0, NULL},
    {"thread", T_ULONG, offsetof(HeldLock, thread), 0, NULL},
    {"claim", T_OBJECT_EX, offsetof(HeldLock, claim), READONLY, NULL},
    {NULL},
};
static PyMemberDef emitter_members[] = {
    {"__vectorcalloffset__", T_PYSSIZET, offsetof(Emitter, call), READONLY, NULL},
    {NULL},
};
static PyType_Slot entry_slots[] = {
    {Py_tp_new, entry_new},     {Py_tp_dealloc, entry_dealloc}, {Py_tp_traverse, entry_traverse},
    {Py_tp_clear, entry_clear}, {Py_tp_members, entry_members}, {0, NULL},
};
static PyType_Slot held_slots[] = {
    {Py_tp_new, held_new},     {Py_tp_dealloc, held_dealloc}, {Py_tp_traverse, held_traverse},
    {Py_tp_clear, held_clear}, {Py_tp_members, held_members}, {0, NULL},
};
static PyType_Slot emitter_slots[] = {
    {Py_tp_call, PyVectorcall_Call}, {Py_tp_dealloc, emitter_dealloc}, {Py_tp_traverse, emitter_traverse},
    {Py_tp_clear, emitter_clear},    {Py_tp_members, emitter_members}, {0, NULL},
};
static PyType_Spec entry_spec = {
    "netstack.network.waiting.held_lock.Entry", sizeof(Entry), 0, Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC, entry_slots,
};
static PyType_Spec held_spec = {
    "netstack.network.waiting.held_lock.HeldLock", sizeof(HeldLock), 0, Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC,
    held_slots,
};
static PyType_Spec emitter_spec = {
    "netstack.network.waiting.held_lock.Emitter", sizeof(Emitter), 0,
    Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_HAVE_VECTORCALL | Py_TPFLAGS_DISALLOW_INSTANTIATION,
    emitter_slots,
};

static int
held_lock_exec(PyObject *module)
{
    State *state = PyModule_GetState(module);
    state->entry = (PyTypeObject *)PyType_FromModuleAndSpec(module, &entry_spec, NULL);
    state->held = (PyTypeObject *)PyType_FromModuleAndSpec(module, &held_spec, NULL);
    state->emitter = (PyTypeObject *)PyType_FromModuleAndSpec(module, &emitter_spec, NULL);
    if (state->entry == NULL || state->held == NULL || state->emitter == NULL) {
        return -1;
    }
    return PyModule_AddType(module, state->entry) < 0 || PyModule_AddType(module, state->held) < 0 ? -1 : 0;
}

static int
held_lock_traverse(PyObject *module, visitproc visit, void *arg)
{
    State *state = PyModule_GetState(module);
    Py_VISIT(state->entry);
    Py_VISIT(state->held);
    Py_VISIT(state->emitter);
    return 0;
}

static int
held_lock_clear(PyObject *module)
{
    State *state = PyModule_GetState(module);
    Py_CLEAR(state->entry);
    Py_CLEAR(state->held);
    Py_CLEAR(state->emitter);
    return 0;
}

static PyMethodDef held_lock_methods[] = {{"holding_emitter", holding_emitter, METH_VARARGS, NULL}, {NULL}};
static PyModuleDef_Slot held_lock_module_slots[] = {{Py_mod_exec, held_lock_exec}, {0, NULL}};
static struct PyModuleDef held_lock_module = {
    PyModuleDef_HEAD_INIT, "held_lock",     NULL, sizeof(State), held_lock_methods, held_lock_module_slots,
    held_lock_traverse,    held_lock_clear, NULL,
};

PyMODINIT_FUNC
PyInit_held_lock(void)
{
    return PyModuleDef_Init(&held_lock_module);
}
