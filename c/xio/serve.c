/* An open connection: its thread, and what XIO asks of it. */
#include "xio.h"

#include <errno.h>
#include <netdb.h>
#include <netinet/tcp.h>

/* How long close waits while nothing happens: for the transport to take what is ours; and for the
 * peer to say that it has it, or for anything after a cancellation, when a peer that is stuck must
 * not hold this end. */
#define LINGER_NS (30 * SECOND_NS)
#define LINGER_SHORT_NS (3 * SECOND_NS)
/* How often a thread that waits for completions looks at deadlines. */
#define TICK_NS SECOND_NS
/* How long nothing must happen before slabs are granted that are too few for a grant. */
#define IDLE_NS (SECOND_NS / 50)
#define BATCH 32

static void run_finish(void *request) {
  finish(request);
}

/* With the lock: whether close has nothing more to wait for. */
static bool is_closed(const struct connection *c) {
  bool idle = c->unacknowledged == 0 && c->open_len == 0 && c->writes.first == NULL && c->stream == NULL;
  bool said = c->peer_fin || (c->fin_sent && c->free_controls == ALL_CONTROLS);
  if (c->judged || is_over(c) || c->fin_acked || (idle && said)) {
    return true;
  }
  bool patient = (c->stream != NULL ? stream_owes(c) : c->in_flight > 0) && !c->aborted;
  return now_ns() - c->moved_ns > (patient ? LINGER_NS : LINGER_SHORT_NS);
}

/* With the lock: takes what is to be finished. */
static struct request *take_finished(struct connection *c) {
  struct request *first = c->finished.first;
  queue_init(&c->finished);
  return first;
}

static void run_closed(void *argument) {
  globus_xio_driver_finished_close(argument, GLOBUS_SUCCESS);
}

/* Ends it. What has not gone by now does not go any more. */
static void connection_end(struct connection *c) {
  globus_xio_operation_t op = c->close_op;
  if (!c->fin_acked && (c->stream != NULL ? stream_owes(c) : c->unacknowledged > 0)) {
    fail(c, "the peer did not acknowledge all that was sent to it");
  }
  if (!c->down && c->stream == NULL) {
    /* It fails where the connection has just ended. */
    (void)haul_disconnect(c->qp);
  }
  if (op == NULL) {
    /* The end of the process closed it. XIO does not know, and may still use it. */
    connection_told(c);
    return;
  }
  struct device *device = connection_free(c);
  in_globus(run_closed, op);
  device_leave(device);
}

static void finish_all(struct request *finished) {
  while (finished != NULL) {
    struct request *next = finished->next;
    in_globus(run_finish, finished);
    finished = next;
  }
}

/* The same for a stream. */
static void serve_stream(struct connection *c) {
  for (;;) {
    pthread_mutex_lock(&c->lock);
    uint64_t moved = c->tx_bytes + c->rx_bytes;
    advance(c, false);
    c->moved_ns = c->tx_bytes + c->rx_bytes != moved ? now_ns() : c->moved_ns;
    struct request *finished = take_finished(c);
    bool closed = finished == NULL && !c->filling && !c->delivering && c->closing && is_closed(c);
    pthread_mutex_unlock(&c->lock);
    if (closed) {
      connection_end(c);
      return;
    }
    finish_all(finished);
    if (finished == NULL) {
      stream_wait(c);
    }
  }
}

/* The thread of a connection from when it is open. */
void serve(struct connection *c) {
  if (c->stream != NULL) {
    serve_stream(c);
    return;
  }
  haul_wc completions[BATCH];
  int64_t patience = TICK_NS;
  for (;;) {
    int count = patience == 0 ? haul_cq_poll(c->cq, completions, BATCH) : haul_cq_wait(c->cq, patience, completions, BATCH);
    pthread_mutex_lock(&c->lock);
    if (count < 0) {
      char text[TEXT_MAX];
      fail(c, "%s", last_error(c->device->context, text));
    }
    for (int i = 0; i < count; i++) {
      take_completion(c, &completions[i]);
    }
    c->moved_ns = count > 0 ? now_ns() : c->moved_ns;
    if (c->down && count <= 0) {
      judge_end(c);
    }
    advance(c, count == 0 && patience > 0);
    struct request *finished = take_finished(c);
    pthread_mutex_unlock(&c->lock);
    finish_all(finished);
    pthread_mutex_lock(&c->lock);
    if (is_over(c) && !c->down) {
      c->down = true;
      (void)haul_disconnect(c->qp);
    }
    /* A connection that has ended has no more completions. */
    bool ended = c->down && count <= 0;
    while (ended && !c->closing && c->finished.first == NULL) {
      pthread_cond_wait(&c->changed, &c->lock);
    }
    bool at_once = c->finished.first != NULL || c->down;
    patience = at_once ? 0 : c->returned_count > 0 ? IDLE_NS : TICK_NS;
    /* Another thread may still be at work for an operation that is finished. */
    bool closed = c->finished.first == NULL && !c->filling && !c->delivering && c->closing && is_closed(c);
    pthread_mutex_unlock(&c->lock);
    if (closed) {
      connection_end(c);
      return;
    }
  }
}

void *run_serve(void *argument) {
  struct connection *c = argument;
  pthread_mutex_lock(&c->lock);
  c->thread = pthread_self();
  pthread_mutex_unlock(&c->lock);
  serve(c);
  return NULL;
}

bool start_thread(void *(*run)(void *), void *argument) {
  pthread_t thread;
  if (pthread_create(&thread, NULL, run, argument) != 0) {
    return false;
  }
  pthread_detach(thread);
  return true;
}

/* ---- What XIO asks ---- */

/* XIO cancels: the callbacks of this operation must not be called from here. */
static void cancel_request(globus_xio_operation_t op, void *argument, globus_xio_error_type_t why) {
  struct connection *c = argument;
  enum outcome outcome = why == GLOBUS_XIO_ERROR_TIMEOUT ? TIMED_OUT : CANCELED;
  pthread_mutex_lock(&c->lock);
  struct request *found = NULL;
  for (int i = 0; i < 2 && found == NULL; i++) {
    struct queue *queue = i == 0 ? &c->reads : &c->writes;
    found = queue_find(queue, op);
    if (found != NULL && !found->busy) {
      queue_remove(queue, op);
      c->aborted = c->aborted || found->write || found->done > 0;
    }
  }
  if (found != NULL) {
    found->outcome = outcome;
    found->canceled = true;
  }
  bool mine = found != NULL && !found->busy;
  pthread_mutex_unlock(&c->lock);
  if (mine) {
    (void)globus_callback_register_oneshot(NULL, NULL, run_finish, found);
  }
}

static struct request *new_request(const globus_xio_iovec_t *pieces, int count, globus_xio_operation_t op, bool write) {
  struct request *request = calloc(1, sizeof *request + (size_t)count * sizeof *pieces);
  if (request != NULL) {
    request->op = op;
    request->write = write;
    request->held = true;
    request->count = count;
    request->wanted = globus_xio_operation_get_wait_for(op);
    memcpy(request->pieces, pieces, (size_t)count * sizeof *pieces);
  }
  return request;
}

static globus_result_t submit(struct connection *c, const globus_xio_iovec_t *pieces, int count, globus_xio_operation_t op,
                              bool write) {
  struct request *request = new_request(pieces, count, op, write);
  if (request == NULL) {
    return no_memory();
  }
  struct queue *queue = write ? &c->writes : &c->reads;
  struct request *finished = NULL;
  pthread_mutex_lock(&c->lock);
  queue_push(queue, request);
  pthread_mutex_unlock(&c->lock);
  if (globus_xio_operation_enable_cancel(op, cancel_request, c)) {
    pthread_mutex_lock(&c->lock);
    queue_remove(queue, op);
    pthread_mutex_unlock(&c->lock);
    free(request);
    GlobusXIOName(haul);
    return GlobusXIOErrorCanceled();
  }
  pthread_mutex_lock(&c->lock);
  if ((request = queue_find(queue, op)) != NULL) {
    request->held = false;
  }
  if (write) {
    fill(c);
  } else {
    c->may_read = true;
    deliver(c);
  }
  if (c->stream != NULL && queue->first != NULL) {
    stream_wake(c);
  }
  /* In a callback of its own thread, the thread finishes it afterwards: here XIO would go through
   * its queue of callbacks. */
  if (!pthread_equal(c->thread, pthread_self())) {
    finished = take_finished(c);
  }
  pthread_mutex_unlock(&c->lock);
  while (finished != NULL) {
    struct request *next = finished->next;
    finish(finished);
    finished = next;
  }
  return GLOBUS_SUCCESS;
}

/* ---- A TCP socket instead, moved by XIO ---- */

/* An operation of XIO on the socket. */
struct plain_operation {
  struct connection *c;
  globus_xio_operation_t op;
};

static globus_xio_operation_t plain_counted(void *argument, globus_size_t count, bool write) {
  struct plain_operation *operation = argument;
  struct connection *c = operation->c;
  globus_xio_operation_t op = operation->op;
  *(write ? &c->tx_bytes : &c->rx_bytes) += count;
  *(write ? &c->tx_ops : &c->rx_ops) += 1;
  free(operation);
  return op;
}

static void plain_read_done(globus_result_t result, globus_size_t count, void *argument) {
  globus_xio_driver_finished_read(plain_counted(argument, count, false), result, count);
}

static void plain_write_done(globus_result_t result, globus_size_t count, void *argument) {
  globus_xio_driver_finished_write(plain_counted(argument, count, true), result, count);
}

static globus_result_t plain_submit(struct connection *c, const globus_xio_iovec_t *pieces, int count,
                                    globus_xio_operation_t op, bool write) {
  globus_size_t wanted = globus_xio_operation_get_wait_for(op);
  struct plain_operation *operation = malloc(sizeof *operation);
  if (operation == NULL) {
    return no_memory();
  }
  *operation = (struct plain_operation){.c = c, .op = op};
  globus_result_t result =
      write ? globus_xio_system_socket_register_write(op, c->plain, pieces, count, wanted, 0, NULL, plain_write_done, operation)
            : globus_xio_system_socket_register_read(op, c->plain, pieces, count, wanted, 0, NULL, plain_read_done, operation);
  if (result != GLOBUS_SUCCESS) {
    free(operation);
  }
  return result;
}

bool plain_begin(struct connection *c) {
  int one = 1;
  /* To send at once is a wish. */
  (void)setsockopt(c->plain_fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
  if (globus_xio_system_socket_init(&c->plain, c->plain_fd, GLOBUS_XIO_SYSTEM_TCP) == GLOBUS_SUCCESS) {
    return true;
  }
  snprintf(c->wrong, sizeof c->wrong, "TCP: Globus does not take the socket");
  return false;
}

globus_result_t driver_read(void *handle, const globus_xio_iovec_t *pieces, int count, globus_xio_operation_t op) {
  struct connection *c = handle;
  return c->plain != NULL ? plain_submit(c, pieces, count, op, false) : submit(c, pieces, count, op, false);
}

globus_result_t driver_write(void *handle, const globus_xio_iovec_t *pieces, int count, globus_xio_operation_t op) {
  struct connection *c = handle;
  return c->plain != NULL ? plain_submit(c, pieces, count, op, true) : submit(c, pieces, count, op, true);
}

void connection_close(struct connection *c) {
  c->closing = true;
  c->moved_ns = now_ns();
  advance(c, false);
  if (c->stream != NULL) {
    stream_wake(c);
  } else if (is_closed(c) && !c->down) {
    /* Its flushed receives wake the thread. */
    (void)haul_disconnect(c->qp);
  }
  pthread_cond_signal(&c->changed);
}

globus_result_t driver_close(void *handle, void *attr, globus_xio_operation_t op) {
  struct connection *c = handle;
  (void)attr;
  if (c == NULL || c->plain != NULL) {
    if (c != NULL) {
      connection_drop(c);
    }
    globus_xio_driver_finished_close(op, GLOBUS_SUCCESS);
    return GLOBUS_SUCCESS;
  }
  pthread_mutex_lock(&c->lock);
  c->close_op = op;
  connection_close(c);
  pthread_mutex_unlock(&c->lock);
  return GLOBUS_SUCCESS;
}

globus_result_t driver_cntl(void *handle, int command, va_list arguments) {
  struct connection *c = handle;
  char host[NI_MAXHOST], port[NI_MAXSERV], text[NI_MAXHOST + NI_MAXSERV + 4];
  if (c == NULL || (command != GLOBUS_XIO_GET_REMOTE_CONTACT && command != GLOBUS_XIO_GET_REMOTE_NUMERIC_CONTACT) ||
      getnameinfo((const struct sockaddr *)&c->peer, sizeof c->peer, host, sizeof host, port, sizeof port,
                  NI_NUMERICHOST | NI_NUMERICSERV) != 0) {
    return failure(GLOBUS_XIO_ERROR_COMMAND, "command %d is not known", command);
  }
  snprintf(text, sizeof text, strchr(host, ':') != NULL ? "[%s]:%s" : "%s:%s", host, port);
  *va_arg(arguments, char **) = strdup(text);
  return GLOBUS_SUCCESS;
}
