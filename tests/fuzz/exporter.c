/* Exporters written in C, which can do what Python cannot: fail without an exception, leave one behind, say anything of
 * a buffer. The test sets the variables and reads the counts (fuzz/exporter.py). */
#include <Python.h>

/* What functions give, and how often each was called. */
Py_buffer buffer;     /* of the next buffer */
void* managed;        /* from managed_from_object */
char borrowed[64];    /* from borrow_from_object */
int status;           /* of the functions that may fail */
int sets_exception;   /* whether they set one when they do */
int leaves_exception; /* whether deleters and releases leave one behind */
int gave, took;

static int answer(void) {
  if (status == 0) ++gave;
  if (status != 0 && sets_exception) PyErr_SetString(PyExc_BufferError, "no");
  return status;
}

static void take(void) {
  ++took;
  if (leaves_exception) PyErr_SetString(PyExc_RuntimeError, "left behind");
}

void deleter(void* self) {
  (void)self;
  take();
}

/* As NumPy's: whoever consumed the capsule has renamed it. */
static void destroy(PyObject* capsule) {
  const char* name = PyCapsule_GetName(capsule);
  if (name == NULL || strncmp(name, "used", 4) != 0) take();
}
PyObject* make_capsule(void* tensor, const char* name) {
  ++gave;
  return PyCapsule_New(tensor, name, destroy);
}

static int managed_from_object(void* object, void** out) {
  (void)object;
  if (status == 0) *out = managed;
  return answer();
}
static int borrow_from_object(void* object, void* out) {
  (void)object;
  if (status == 0) memcpy(out, borrowed, 48);
  return answer();
}
/* DLPack's table of functions. */
struct {
  unsigned major, minor;
  void *previous, *allocate, *managed_from_object, *object_from_managed, *borrow_from_object, *current_stream;
} table;
PyObject* make_exchange(int major, int borrows) {
  table.major = (unsigned)major;
  table.managed_from_object = (void*)managed_from_object;
  table.borrow_from_object = borrows ? (void*)borrow_from_object : NULL;
  return PyCapsule_New(&table, "dlpack_exchange_api", NULL);
}

static int get_buffer(PyObject* self, Py_buffer* view, int flags) {
  (void)flags;
  *view = buffer;
  view->obj = NULL;
  if (answer() != 0) return -1;
  view->obj = self;
  Py_INCREF(self);
  return 0;
}
static void release_buffer(PyObject* self, Py_buffer* view) {
  (void)self;
  (void)view;
  take();
}
PyObject* make_buffer_type(void) {
  static PyBufferProcs procs = {get_buffer, release_buffer};
  static PyTypeObject type = {PyVarObject_HEAD_INIT(NULL, 0).tp_name = "exporter.Buffer"};
  type.tp_basicsize = sizeof(PyObject);
  type.tp_as_buffer = &procs;
  type.tp_flags = Py_TPFLAGS_DEFAULT;
  type.tp_new = PyType_GenericNew;
  if (PyType_Ready(&type) != 0) return NULL;
  Py_INCREF(&type);
  return (PyObject*)&type;
}
