/* Records of a resident visitor, in C: staying.py is the reference, and documents every name.

   Rules: between the test of `is_wanted` and the call of `try_emit` no Python code runs, so no other thread does. */

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <structmember.h>

typedef struct {
    PyObject_HEAD
    char is_wanted;
    PyObject *give_way;
} Door;

typedef struct {
    PyObject_HEAD
    char is_active, is_resident;
    unsigned long thread;
    PyObject *door, *claim;
} Stay;

typedef struct {
    PyObject_HEAD
    vectorcallfunc call;
    PyObject *stay, *try_emit, *unsent, *flush_connections, *refusals;
} Emitter;

typedef struct {
    PyTypeObject *door, *stay, *emitter;
} State;

static struct PyModuleDef staying_module;

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

WITH_REFERENCES(door, Door, Py_VISIT(self->give_way), Py_CLEAR(self->give_way))
WITH_REFERENCES(stay, Stay, Py_VISIT(self->door); Py_VISIT(self->claim), Py_CLEAR(self->door); Py_CLEAR(self->claim))
WITH_REFERENCES(emitter, Emitter, Py_VISIT(self->stay); Py_VISIT(self->try_emit); Py_VISIT(self->unsent);
                Py_VISIT(self->flush_connections); Py_VISIT(self->refusals), Py_CLEAR(self->stay);
                Py_CLEAR(self->try_emit); Py_CLEAR(self->unsent); Py_CLEAR(self->flush_connections);
                Py_CLEAR(self->refusals))

static PyObject *
door_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"give_way", NULL};
    PyObject *give_way;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O:Door", names, &give_way)) {
        return NULL;
    }
    Door *self = (Door *)type->tp_alloc(type, 0);
    if (self != NULL) {
        self->give_way = Py_NewRef(give_way);
    }
    return (PyObject *)self;
}

static PyObject *
stay_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"door", NULL};
    PyObject *module = PyType_GetModuleByDef(type, &staying_module), *door;
    if (module == NULL || !PyArg_ParseTupleAndKeywords(args, kwargs, "O!:Stay", names,
                                                       ((State *)PyModule_GetState(module))->door, &door)) {
        return NULL;
    }
    PyObject *claim = PyList_New(0);
    Stay *self = claim == NULL ? NULL : (Stay *)type->tp_alloc(type, 0);
    if (self == NULL) {
        Py_XDECREF(claim);
        return NULL;
    }
    self->door = Py_NewRef(door);
    self->claim = claim;
    return (PyObject *)self;
}

/* What `emit` does while the stay is active. */
static PyObject *
emit_inside(Emitter *self, Stay *stay, PyObject *record)
{
    if (((Door *)stay->door)->is_wanted || !stay->is_resident || stay->thread != PyThread_get_thread_ident()) {
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
    Stay *stay = (Stay *)self->stay;
    Door *door = (Door *)stay->door;
    if (stay->is_active) {
        Py_RETURN_FALSE;
    }
    stay->is_active = 1;
    PyObject *is_written = emit_inside(self, stay, args[0]);
    stay->is_active = 0;
    if (door->is_wanted) {
        PyObject *type, *value, *trace;
        PyErr_Fetch(&type, &value, &trace);
        PyObject *done = PyObject_CallOneArg(door->give_way, (PyObject *)stay);
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
staying_emitter(PyObject *module, PyObject *args)
{
    State *state = PyModule_GetState(module);
    PyObject *stay, *try_emit, *unsent, *flush_connections;
    if (!PyArg_ParseTuple(args, "O!OO!O:staying_emitter", state->stay, &stay, &try_emit, &PyDict_Type, &unsent,
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
    self->stay = Py_NewRef(stay);
    self->try_emit = Py_NewRef(try_emit);
    self->unsent = Py_NewRef(unsent);
    self->flush_connections = Py_NewRef(flush_connections);
    self->refusals = refusals;
    return (PyObject *)self;
}

/* ------------------------------------------------------------------------------------------------------- Module */

static PyMemberDef door_members[] = {
    {"is_wanted", T_BOOL, offsetof(Door, is_wanted), 0, NULL},
    {"give_way", T_OBJECT_EX, offsetof(Door, give_way), READONLY, NULL},
    {NULL},
};
static PyMemberDef stay_members[] = {
    {"door", T_OBJECT_EX, offsetof(Stay, door), READONLY, NULL},
    {"is_active", T_BOOL, offsetof(Stay, is_active), 0, NULL},
    {"is_resident", T_BOOL, offsetof(Stay, is_resident), 0, NULL},
    {"thread", T_ULONG, offsetof(Stay, thread), 0, NULL},
    {"claim", T_OBJECT_EX, offsetof(Stay, claim), READONLY, NULL},
    {NULL},
};
static PyMemberDef emitter_members[] = {
    {"__vectorcalloffset__", T_PYSSIZET, offsetof(Emitter, call), READONLY, NULL},
    {NULL},
};
static PyType_Slot door_slots[] = {
    {Py_tp_new, door_new},           {Py_tp_dealloc, door_dealloc}, {Py_tp_traverse, door_traverse},
    {Py_tp_clear, door_clear},       {Py_tp_members, door_members}, {0, NULL},
};
static PyType_Slot stay_slots[] = {
    {Py_tp_new, stay_new},           {Py_tp_dealloc, stay_dealloc}, {Py_tp_traverse, stay_traverse},
    {Py_tp_clear, stay_clear},       {Py_tp_members, stay_members}, {0, NULL},
};
static PyType_Slot emitter_slots[] = {
    {Py_tp_call, PyVectorcall_Call}, {Py_tp_dealloc, emitter_dealloc}, {Py_tp_traverse, emitter_traverse},
    {Py_tp_clear, emitter_clear},    {Py_tp_members, emitter_members}, {0, NULL},
};
static PyType_Spec door_spec = {
    "netstack.network.waiting.staying.Door", sizeof(Door), 0, Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC, door_slots,
};
static PyType_Spec stay_spec = {
    "netstack.network.waiting.staying.Stay", sizeof(Stay), 0, Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC, stay_slots,
};
static PyType_Spec emitter_spec = {
    "netstack.network.waiting.staying.Emitter", sizeof(Emitter), 0,
    Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_HAVE_VECTORCALL | Py_TPFLAGS_DISALLOW_INSTANTIATION,
    emitter_slots,
};

static int
staying_exec(PyObject *module)
{
    State *state = PyModule_GetState(module);
    state->door = (PyTypeObject *)PyType_FromModuleAndSpec(module, &door_spec, NULL);
    state->stay = (PyTypeObject *)PyType_FromModuleAndSpec(module, &stay_spec, NULL);
    state->emitter = (PyTypeObject *)PyType_FromModuleAndSpec(module, &emitter_spec, NULL);
    if (state->door == NULL || state->stay == NULL || state->emitter == NULL) {
        return -1;
    }
    return PyModule_AddType(module, state->door) < 0 || PyModule_AddType(module, state->stay) < 0 ? -1 : 0;
}

static int
staying_traverse(PyObject *module, visitproc visit, void *arg)
{
    State *state = PyModule_GetState(module);
    Py_VISIT(state->door);
    Py_VISIT(state->stay);
    Py_VISIT(state->emitter);
    return 0;
}

static int
staying_clear(PyObject *module)
{
    State *state = PyModule_GetState(module);
    Py_CLEAR(state->door);
    Py_CLEAR(state->stay);
    Py_CLEAR(state->emitter);
    return 0;
}

static PyMethodDef staying_methods[] = {{"staying_emitter", staying_emitter, METH_VARARGS, NULL}, {NULL}};
static PyModuleDef_Slot staying_module_slots[] = {{Py_mod_exec, staying_exec}, {0, NULL}};
static struct PyModuleDef staying_module = {
    PyModuleDef_HEAD_INIT, "staying",           NULL,        sizeof(State), staying_methods, staying_module_slots,
    staying_traverse,      staying_clear,       NULL,
};

PyMODINIT_FUNC
PyInit_staying(void)
{
    return PyModuleDef_Init(&staying_module);
}
