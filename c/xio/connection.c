/* A connection: its requests, its memory, its queue pair. */
#include "xio.h"

#include <fcntl.h>
#include <unistd.h>

void queue_init(struct queue *queue) {
  queue->first = NULL;
  queue->last = &queue->first;
}

void queue_push(struct queue *queue, struct request *request) {
  request->next = NULL;
  *queue->last = request;
  queue->last = &request->next;
}

struct request *queue_pop(struct queue *queue) {
  struct request *request = queue->first;
  if (request != NULL && (queue->first = request->next) == NULL) {
    queue->last = &queue->first;
  }
  return request;
}

struct request *queue_find(const struct queue *queue, globus_xio_operation_t op) {
  struct request *request = queue->first;
  while (request != NULL && request->op != op) {
    request = request->next;
  }
  return request;
}

/* The first request, if it may be worked on. */
struct request *queue_ready(const struct queue *queue) {
  return queue->first != NULL && !queue->first->held ? queue->first : NULL;
}

/* Takes this operation's request out, from wherever it is. */
struct request *queue_remove(struct queue *queue, globus_xio_operation_t op) {
  for (struct request **at = &queue->first; *at != NULL; at = &(*at)->next) {
    struct request *request = *at;
    if (request->op == op) {
      if ((*at = request->next) == NULL) {
        queue->last = at;
      }
      return request;
    }
  }
  return NULL;
}

static const char *mode_name(unsigned mode) {
  return mode == MODE_STREAM ? "stream" : mode == MODE_SEND ? "send" : "write";
}

/* Appends what a connection has done to the file of the option stats, or of HAUL_XIO_STATS: one
 * line of JSON. */
static void write_statistics(const struct connection *c, const char *end) {
  const char *path = c->options.stats[0] != '\0' ? c->options.stats : getenv("HAUL_XIO_STATS");
  char line[2 * TEXT_MAX], reason[TEXT_MAX];
  if (path == NULL || path[0] == '\0') {
    return;
  }
  snprintf(reason, sizeof reason, "%s", c->wrong);
  for (char *at = reason; *at != '\0'; at++) {
    *at = *at == '"' || *at == '\\' || (unsigned char)*at < ' ' ? '\'' : *at;
  }
  int len = snprintf(
      line, sizeof line,
      "{\"pid\":%d,\"role\":\"%s\",\"channel\":\"%s\",\"device\":\"%s\",\"mode\":\"%s\",\"tx_bytes\":%llu,\"rx_bytes\":%llu,"
      "\"tx_slabs\":%llu,\"rx_slabs\":%llu,\"tx_ops\":%llu,\"rx_ops\":%llu,\"seconds\":%.3f,\"end\":\"%s\",\"reason\":\"%s\"}\n",
      (int)getpid(), c->active ? "active" : "passive", c->plain != NULL ? "tcp" : c->options.channel,
      c->device != NULL ? c->device->info.name : "", mode_name(c->mine.mode), (unsigned long long)c->tx_bytes,
      (unsigned long long)c->rx_bytes, (unsigned long long)c->tx_slabs, (unsigned long long)c->rx_slabs,
      (unsigned long long)c->tx_ops, (unsigned long long)c->rx_ops, (double)(now_ns() - c->since_ns) / 1e9,
      c->left ? "left" : c->wrong[0] != '\0' ? "error" : end, reason);
  int fd = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
  if (fd >= 0) {
    /* A line that is not written is missing, and that is all. */
    ssize_t written = write(fd, line, (size_t)len < sizeof line ? (size_t)len : sizeof line - 1);
    (void)written;
    close(fd);
  }
}

bool allocate(const struct device *device, size_t len, uint32_t access, haul_mr **mr, haul_mr_info *info,
                     char wrong[TEXT_MAX]) {
  *info = (haul_mr_info)HAUL_MR_INFO_INIT;
  if (haul_mr_alloc(device->pd, len, access, mr) == HAUL_OK && haul_mr_query(*mr, info) == HAUL_OK) {
    return true;
  }
  char text[TEXT_MAX / 2] = "";
  haul_last_error(device->context, text, sizeof text);
  snprintf(wrong, TEXT_MAX, "%zu bytes of registered memory: %s (options slab and slabs make it less)", len, text);
  return false;
}

/* Where headers and grants are: of slabs that go, of what goes without a slab, of what comes. */
uint32_t header_out(uint32_t slot) {
  return slot * HEADER_LEN;
}

uint32_t control_out(const struct connection *c, uint32_t number) {
  return c->options.slabs * HEADER_LEN + number * c->control_len;
}

uint32_t control_in(const struct connection *c, uint32_t number) {
  return control_out(c, CONTROLS) + number * c->control_len;
}

unsigned char *control_bytes(const struct connection *c, uint32_t at) {
  return (unsigned char *)c->control.ptr + at;
}

haul_sge control_piece(const struct connection *c, uint32_t at, uint32_t len) {
  return (haul_sge){.addr = c->control.addr + at, .len = len, .lkey = c->control.lkey};
}

/* Posts the receive with this number. In mode send it has a slab as well. */
bool post_receive(struct connection *c, uint32_t number) {
  haul_sge pieces[2] = {control_piece(c, control_in(c, number), c->control_len)};
  haul_recv_wr request = {.wr_id = number, .sges = pieces, .num_sge = 1};
  if (c->mine.mode == MODE_SEND) {
    pieces[0].len = HEADER_LEN;
    pieces[1] = (haul_sge){
        .addr = c->rx.addr + (uint64_t)number * c->options.slab, .len = c->options.slab, .lkey = c->rx.lkey};
    request.num_sge = 2;
  }
  return haul_post_recv(c->qp, &request, 1, NULL) == HAUL_OK;
}

/* Connections that are open: a server's session may end without closing them. */
static pthread_mutex_t opened_lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t opened_changed = PTHREAD_COND_INITIALIZER;
static struct connection *opened;

void connection_opened(struct connection *c) {
  pthread_mutex_lock(&opened_lock);
  c->next = opened;
  opened = c;
  pthread_mutex_unlock(&opened_lock);
}

void connection_told(const struct connection *c) {
  pthread_mutex_lock(&opened_lock);
  struct connection **at = &opened;
  while (*at != NULL && *at != c) {
    at = &(*at)->next;
  }
  if (*at != NULL) {
    *at = c->next;
    write_statistics(c, c->aborted ? "aborted" : "closed");
    pthread_cond_broadcast(&opened_changed);
  }
  pthread_mutex_unlock(&opened_lock);
}

/* Whether its thread closes it, if need be from now on. In the middle of a write it does not: the
 * peer would take that for the end of the stream. */
static bool closes(struct connection *c) {
  pthread_mutex_lock(&c->lock);
  if (c->plain == NULL && !c->closing && c->writes.first == NULL && !pthread_equal(c->thread, pthread_self())) {
    connection_close(c);
  }
  bool closing = c->closing;
  pthread_mutex_unlock(&c->lock);
  return closing;
}

/* With the lock of those that are open: whether any closes. */
static bool close_opened(void) {
  bool any = false;
  for (struct connection *c = opened; c != NULL; c = c->next) {
    any = closes(c) || any;
  }
  return any;
}

void connections_close(int64_t until_ns) {
  struct timespec until = time_of(until_ns);
  pthread_mutex_lock(&opened_lock);
  while (close_opened() && pthread_cond_clockwait(&opened_changed, &opened_lock, CLOCK_MONOTONIC, &until) == 0) {
  }
  for (struct connection *c = opened; c != NULL; c = c->next) {
    pthread_mutex_lock(&c->lock);
    write_statistics(c, c->writes.first != NULL ? "aborted" : "left");
    pthread_mutex_unlock(&c->lock);
  }
  opened = NULL;
  pthread_mutex_unlock(&opened_lock);
}

static bool make_arrays(struct connection *c) {
  c->free_slots = calloc(c->options.slabs, sizeof *c->free_slots);
  c->credits = calloc(SLABS_MAX, sizeof *c->credits);
  c->staged = calloc(c->receives, sizeof *c->staged);
  c->returned = calloc(c->receives, sizeof *c->returned);
  c->granted = calloc(c->receives, sizeof *c->granted);
  for (uint32_t i = 0; c->free_slots != NULL && i < c->options.slabs; i++) {
    c->free_slots[c->free_slot_count++] = (uint16_t)(c->options.slabs - 1 - i);
  }
  for (uint32_t i = 0; c->granted != NULL && i < c->options.slabs; i++) {
    c->granted[i] = true;
  }
  return c->free_slots != NULL && c->credits != NULL && c->staged != NULL && c->returned != NULL && c->granted != NULL;
}

static bool make_queues(struct connection *c) {
  haul_qp_init init = HAUL_QP_INIT;
  haul_qp_info info = HAUL_QP_INFO_INIT;
  init.max_send_wr = 2 * c->options.slabs + CONTROLS;
  init.max_recv_wr = c->receives;
  init.max_send_sge = init.max_recv_sge = 2;
  uint32_t entries = init.max_send_wr + init.max_recv_wr;
  if ((!c->active || haul_cm_channel_create(c->device->context, &c->events) == HAUL_OK) &&
      haul_cq_create(c->device->context, entries, NULL, 0, &c->cq) == HAUL_OK) {
    init.send_cq = init.recv_cq = c->cq;
    if (haul_qp_create(c->device->pd, &init, &c->qp) == HAUL_OK && haul_qp_query(c->qp, &info) == HAUL_OK) {
      c->qp_num = info.qp_num;
      return true;
    }
  }
  last_error(c->device->context, c->wrong);
  return false;
}

/* Everything that a connection needs before it is connected; what is wrong is in wrong. */
bool connection_prepare(struct connection *c, unsigned mode) {
  if (mode == MODE_STREAM) {
    c->mine = (struct hello){.version = HAUL_XIO_VERSION, .mode = MODE_STREAM, .slab = c->options.slab,
                             .slabs = (uint16_t)c->options.slabs};
    return true;
  }
  c->receives = c->options.slabs + CONTROLS;
  c->control_len = HEADER_LEN + SLABS_MAX * 2;
  uint32_t slabs = mode == MODE_SEND ? c->receives : c->options.slabs;
  uint32_t access = HAUL_ACCESS_LOCAL_WRITE | (mode == MODE_WRITE ? HAUL_ACCESS_REMOTE_WRITE : 0);
  c->mine = (struct hello){.version = HAUL_XIO_VERSION, .mode = (uint16_t)mode};
  if (!make_arrays(c)) {
    snprintf(c->wrong, sizeof c->wrong, "no memory");
    return false;
  }
  size_t control = control_in(c, c->receives), rx = (size_t)slabs * c->options.slab;
  if (!allocate(c->device, control, HAUL_ACCESS_LOCAL_WRITE, &c->control_mr, &c->control, c->wrong) ||
      !allocate(c->device, rx, access, &c->rx_mr, &c->rx, c->wrong) || !make_queues(c)) {
    return false;
  }
  c->mine.slab = c->options.slab;
  c->mine.slabs = (uint16_t)c->options.slabs;
  c->mine.rkey = mode == MODE_WRITE ? c->rx.rkey : 0;
  c->mine.addr = mode == MODE_WRITE ? c->rx.addr : 0;
  for (uint32_t i = 0; i < c->receives; i++) {
    if (!post_receive(c, i)) {
      last_error(c->device->context, c->wrong);
      return false;
    }
  }
  return true;
}

/* The peer's ring is known: all of it may be used. */
void connection_begin(struct connection *c, const struct hello *peers) {
  c->peers = *peers;
  if (c->stream != NULL) {
    return;
  }
  c->out_slab = peers->slab < c->options.slab ? peers->slab : c->options.slab;
  while (c->credit_count < peers->slabs) {
    c->credits[c->credit_count] = (uint16_t)(peers->slabs - 1 - c->credit_count);
    c->credit_count++;
  }
}

/* Takes over the user of device. */
struct connection *connection_new(const struct options *options, struct device *device, bool active) {
  struct connection *c = calloc(1, sizeof *c);
  if (c == NULL) {
    if (device != NULL) {
      device_leave(device);
    }
    return NULL;
  }
  c->options = *options;
  c->device = device;
  c->active = active;
  c->plain_fd = c->wake = -1;
  c->open = -1;
  c->free_controls = ALL_CONTROLS;
  c->since_ns = now_ns();
  queue_init(&c->reads);
  queue_init(&c->writes);
  queue_init(&c->finished);
  pthread_mutex_init(&c->lock, NULL);
  pthread_cond_init(&c->changed, NULL);
  return c;
}

/* Frees everything but the user of the device, which it hands back: to close one may take a
 * moment. */
struct device *connection_free(struct connection *c) {
  struct device *device = c->device;
  connection_told(c);
  haul_stream_destroy(c->stream);
  haul_qp_destroy(c->qp);
  haul_cq_destroy(c->cq);
  haul_cm_channel_destroy(c->events);
  haul_mr_dereg(c->rx_mr);
  haul_mr_dereg(c->tx_mr);
  haul_mr_dereg(c->control_mr);
  if (c->plain != NULL) {
    globus_xio_system_socket_destroy(c->plain);
  }
  if (c->plain_fd >= 0) {
    close(c->plain_fd);
  }
  if (c->wake >= 0) {
    close(c->wake);
  }
  globus_xio_contact_destroy(&c->contact);
  free(c->free_slots);
  free(c->credits);
  free(c->staged);
  free(c->returned);
  free(c->granted);
  pthread_cond_destroy(&c->changed);
  pthread_mutex_destroy(&c->lock);
  free(c);
  return device;
}

void connection_drop(struct connection *c) {
  struct device *device = connection_free(c);
  if (device != NULL) {
    device_leave(device);
  }
}
