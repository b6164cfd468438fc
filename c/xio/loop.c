/* Where Globus may be called: any thread, or under its model without threads its own loop, which a
 * pipe wakes. And until when. */
#include "xio.h"

#include <fcntl.h>
#include <globus_xio_file_driver.h>
#include <unistd.h>

/* Something that is to be done where Globus may be called. */
struct task {
  struct task *next;
  void (*run)(void *);
  void *argument;
};

/* Globus' loop under its model without threads: it reads a byte from a pipe for each time that
 * tasks were added. */
static struct {
  pthread_mutex_t lock;
  bool started;
  int pipe[2];
  globus_xio_handle_t handle;
  globus_byte_t byte;
  struct task *first, **last;
} loop = {.lock = PTHREAD_MUTEX_INITIALIZER, .pipe = {-1, -1}, .last = &loop.first};

/* The threads of the driver that are in Globus. */
static struct {
  pthread_mutex_t lock;
  pthread_cond_t changed;
  unsigned inside;
  bool ended;
} gate = {.lock = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER};

/* Of those, whether it is this one. */
static _Thread_local bool inside;

static void loop_listen(void);

static void loop_run(globus_xio_handle_t handle, globus_result_t result, globus_byte_t *buffer, globus_size_t len,
                     globus_size_t count, globus_xio_data_descriptor_t data, void *unused) {
  (void)handle, (void)buffer, (void)len, (void)count, (void)data, (void)unused;
  pthread_mutex_lock(&loop.lock);
  struct task *task = loop.first;
  loop.first = NULL;
  loop.last = &loop.first;
  pthread_mutex_unlock(&loop.lock);
  while (task != NULL) {
    struct task *next = task->next;
    task->run(task->argument);
    free(task);
    task = next;
  }
  if (result == GLOBUS_SUCCESS) {
    loop_listen();
  }
}

static void loop_listen(void) {
  /* It fails when Globus ends. */
  (void)globus_xio_register_read(loop.handle, &loop.byte, 1, 1, NULL, loop_run, NULL);
}

void globus_begin(void) {
  pthread_mutex_lock(&gate.lock);
  gate.ended = false;
  pthread_mutex_unlock(&gate.lock);
}

void globus_end(int64_t until_ns) {
  struct timespec until = time_of(until_ns);
  pthread_mutex_lock(&gate.lock);
  gate.ended = true;
  while (gate.inside > (inside ? 1 : 0) &&
         pthread_cond_clockwait(&gate.changed, &gate.lock, CLOCK_MONOTONIC, &until) == 0) {
  }
  pthread_mutex_unlock(&gate.lock);
}

static void at_exit(void) {
  int64_t until_ns = now_ns() + EXIT_NS;
  globus_end(until_ns);
  connections_close(until_ns);
}

/* Not a destructor: those run behind all of atexit's functions. What Globus calls, OpenSSL above
 * all, is gone by then. The first data connection is late enough that what GSI needs has registered
 * its own functions, which run behind this one. */
static void watch_exit(void) {
  if (atexit(at_exit) != 0) {
    abort();
  }
}

/* In a thread that may call Globus, before anything that another thread has to finish. */
bool loop_start(void) {
  static pthread_once_t watched = PTHREAD_ONCE_INIT;
  pthread_once(&watched, watch_exit);
  if (loop.started || globus_thread_preemptive_threads()) {
    return true;
  }
  static globus_xio_driver_t file;
  globus_xio_stack_t stack;
  globus_xio_attr_t attr;
  bool good = pipe2(loop.pipe, O_CLOEXEC) == 0 && globus_xio_driver_load("file", &file) == GLOBUS_SUCCESS;
  if (good && globus_xio_stack_init(&stack, NULL) == GLOBUS_SUCCESS && globus_xio_attr_init(&attr) == GLOBUS_SUCCESS) {
    good = globus_xio_stack_push_driver(stack, file) == GLOBUS_SUCCESS &&
           globus_xio_handle_create(&loop.handle, stack) == GLOBUS_SUCCESS &&
           globus_xio_attr_cntl(attr, file, GLOBUS_XIO_FILE_SET_HANDLE, loop.pipe[0]) == GLOBUS_SUCCESS &&
           globus_xio_open(loop.handle, NULL, attr) == GLOBUS_SUCCESS;
    globus_xio_attr_destroy(attr);
    globus_xio_stack_destroy(stack);
  }
  if (good) {
    loop.started = true;
    loop_listen();
  }
  return good;
}

/* In this thread; not when Globus must not be called any more. */
static void run_here(void (*run)(void *), void *argument) {
  pthread_mutex_lock(&gate.lock);
  bool ended = gate.ended;
  gate.inside += ended ? 0 : 1;
  pthread_mutex_unlock(&gate.lock);
  if (ended) {
    return;
  }
  inside = true;
  run(argument);
  inside = false;
  pthread_mutex_lock(&gate.lock);
  gate.inside--;
  pthread_cond_broadcast(&gate.changed);
  pthread_mutex_unlock(&gate.lock);
}

/* Has it done where Globus may be called: here, where there are threads. */
void in_globus(void (*run)(void *), void *argument) {
  if (!loop.started) {
    run_here(run, argument);
    return;
  }
  struct task *task = malloc(sizeof *task);
  if (task == NULL) {
    abort();
  }
  *task = (struct task){.run = run, .argument = argument};
  pthread_mutex_lock(&loop.lock);
  bool first = loop.first == NULL;
  *loop.last = task;
  loop.last = &task->next;
  pthread_mutex_unlock(&loop.lock);
  if (first) {
    /* One byte is never too much for a pipe from which each is read. */
    ssize_t written = write(loop.pipe[1], "", 1);
    (void)written;
  }
}
