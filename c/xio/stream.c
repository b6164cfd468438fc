/* Connections that are byte streams over UDT: channel=udt. The library's rings take what slabs take
 * elsewhere. */
#include "xio.h"

#include <errno.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

/* How long a peer may take for its hello once it has connected. */
#define HELLO_NS (10 * SECOND_NS)
/* What a ring may have. */
#define RING_MIN ((uint64_t)1 << 20)
#define RING_MAX ((uint64_t)1 << 30)
/* How often a thread that waits looks at deadlines. */
#define TICK_MS 1000

haul_stream_options stream_options(const struct options *options) {
  haul_stream_options stream = HAUL_STREAM_OPTIONS_INIT;
  uint64_t bytes = (uint64_t)options->slab * options->slabs;
  stream.send_bytes = stream.receive_bytes = bytes < RING_MIN ? RING_MIN : bytes > RING_MAX ? RING_MAX : bytes;
  return stream;
}

/* ---- Opening ---- */

/* Waits for one of `wanted`: 1; 0 when the time is over, -1 when it is canceled. */
static int await(haul_stream *stream, int wake, uint32_t wanted, int64_t until_ns) {
  for (;;) {
    if (haul_stream_poll(stream, wanted) != 0) {
      return 1;
    }
    int waited = wait_for(haul_stream_fd(stream), wake, until_ns);
    if (waited <= 0) {
      return waited;
    }
  }
}

static const char *reason(haul_stream *stream, char text[TEXT_MAX]) {
  haul_stream_info info = HAUL_STREAM_INFO_INIT;
  bool told = haul_stream_query(stream, &info) == HAUL_OK && info.reason[0] != '\0';
  snprintf(text, TEXT_MAX, "%s", told ? info.reason : "it has ended");
  return text;
}

/* The ring is empty, so that it takes all. */
static void say_hello(struct connection *c) {
  unsigned char hello[HELLO_LEN];
  hello_write(hello, &c->mine);
  (void)haul_stream_send(c->stream, hello, sizeof hello);
}

/* The first bytes of the peer. */
static enum opened read_hello(struct connection *c, int wake, struct hello *peers, char wrong[TEXT_MAX]) {
  unsigned char hello[HELLO_LEN];
  int64_t until_ns = now_ns() + HELLO_NS;
  for (size_t at = 0; at < sizeof hello;) {
    int got = haul_stream_recv(c->stream, hello + at, sizeof hello - at);
    if (got < 0) {
      reason(c->stream, wrong);
      return NO_DRIVER;
    }
    at += (size_t)got;
    int how = got > 0 ? 1 : await(c->stream, wake, HAUL_STREAM_READABLE, until_ns);
    if (how <= 0) {
      snprintf(wrong, TEXT_MAX, "the peer speaks UDT, but it is no haul driver");
      return how < 0 ? OPEN_CANCELED : NO_DRIVER;
    }
  }
  return hello_read(hello, sizeof hello, true, peers, wrong) == NULL ? OPENED : OPEN_FAILED;
}

enum opened connect_stream(struct connection *c) {
  struct sockaddr_storage to = c->peer;
  haul_stream_options options = stream_options(&c->options);
  struct hello peers;
  set_port(&to, RDMA_PORT(port_of(&c->peer)));
  if (haul_stream_connect(c->device->context, (struct sockaddr *)&to, address_len(&to), &options, &c->stream) != HAUL_OK) {
    last_error(c->device->context, c->wrong);
    return OPEN_FAILED;
  }
  say_hello(c);
  int got = await(c->stream, c->wake, HAUL_STREAM_OPEN | HAUL_STREAM_OVER, now_ns() + CONNECT_NS);
  if (got <= 0) {
    snprintf(c->wrong, sizeof c->wrong, "no answer");
    return got < 0 ? OPEN_CANCELED : NO_DRIVER;
  }
  enum opened how = read_hello(c, c->wake, &peers, c->wrong);
  if (how == OPENED) {
    connection_begin(c, &peers);
  }
  return how;
}

enum opened welcome_stream(struct connection *c, int wake, char wrong[TEXT_MAX]) {
  struct hello peers = {.version = HAUL_XIO_VERSION};
  enum opened how = read_hello(c, wake, &peers, wrong);
  if (how == OPEN_FAILED) {
    c->mine = (struct hello){.version = HAUL_XIO_VERSION,
                             .status = peers.version != HAUL_XIO_VERSION ? HELLO_VERSION : HELLO_LIMITS};
  }
  if (how == OPENED || how == OPEN_FAILED) {
    say_hello(c);
  }
  if (how == OPENED) {
    connection_begin(c, &peers);
  } else if (how == OPEN_FAILED) {
    (void)haul_stream_shutdown(c->stream);
    (void)await(c->stream, wake, HAUL_STREAM_SENT | HAUL_STREAM_OVER, now_ns() + SECOND_NS);
  }
  return how;
}

/* ---- Bytes ---- */

/* With the lock: the connection has ended. Whether that is bad depends on what was said before. */
static void judge_stream(struct connection *c) {
  haul_stream_info info = HAUL_STREAM_INFO_INIT;
  char text[TEXT_MAX];
  if (c->judged || is_over(c)) {
    return;
  }
  /* It only fails for NULL. */
  (void)haul_stream_query(c->stream, &info);
  c->judged = c->down = true;
  bool all = info.arrived_bytes == info.given_bytes && c->writes.first == NULL;
  if (all && (info.flags & HAUL_STREAM_PEER_ENDED) != 0) {
    return;
  }
  c->left = all;
  fail(c, "the connection to the peer's driver was lost: %s", reason(c->stream, text));
}

bool stream_take(struct connection *c) {
  struct request *request = c->writes.first;
  size_t len = 0;
  int sent = 0;
  request->busy = true;
  pthread_mutex_unlock(&c->lock);
  while (request->at < request->count) {
    const globus_xio_iovec_t *piece = &request->pieces[request->at];
    size_t left = piece->iov_len - request->offset;
    sent = left > 0 ? haul_stream_send(c->stream, (const char *)piece->iov_base + request->offset, left) : 0;
    if (sent < 0 || (left > 0 && sent == 0)) {
      break;
    }
    len += (size_t)sent;
    move_on(request, (size_t)sent);
  }
  pthread_mutex_lock(&c->lock);
  bool whole = request->at == request->count || request->canceled;
  note_taken(c, request, len);
  if (sent < 0) {
    judge_stream(c);
  }
  return whole;
}

void stream_give(struct connection *c) {
  struct request *request = c->reads.first;
  size_t len = 0;
  int got = 0;
  request->busy = true;
  c->may_read = false;
  pthread_mutex_unlock(&c->lock);
  while (request->at < request->count) {
    const globus_xio_iovec_t *piece = &request->pieces[request->at];
    size_t left = piece->iov_len - request->offset;
    got = left > 0 ? haul_stream_recv(c->stream, (char *)piece->iov_base + request->offset, left) : 0;
    if (got < 0 || (left > 0 && got == 0)) {
      break;
    }
    len += (size_t)got;
    move_on(request, (size_t)got);
  }
  pthread_mutex_lock(&c->lock);
  request->busy = false;
  request->done += len;
  c->rx_bytes += len;
  if (got == HAUL_ERR_ENDED) {
    c->peer_fin = true;
  } else if (got < 0) {
    judge_stream(c);
  } else if (request->at == request->count) {
    c->may_read = true;
  }
}

/* ---- The end ---- */

void stream_finish(struct connection *c) {
  if (c->closing && c->writes.first == NULL && !c->filling && !c->fin_sent && !c->down && !is_over(c)) {
    c->fin_sent = true;
    (void)haul_stream_shutdown(c->stream);
  }
}

bool stream_owes(const struct connection *c) {
  haul_stream_info info = HAUL_STREAM_INFO_INIT;
  return haul_stream_query(c->stream, &info) == HAUL_OK && info.arrived_bytes != info.given_bytes;
}

void stream_wake(const struct connection *c) {
  (void)eventfd_write(c->wake, 1);
}

/* With the lock: what the stream's thread waits for. */
static uint32_t wanted(const struct connection *c) {
  uint32_t wanted = c->down ? 0 : HAUL_STREAM_OVER;
  wanted |= c->reads.first != NULL && !c->peer_fin ? HAUL_STREAM_READABLE : 0;
  wanted |= c->writes.first != NULL && !c->down ? HAUL_STREAM_WRITABLE : 0;
  return wanted | (c->fin_sent && !c->fin_acked ? HAUL_STREAM_SENT : 0);
}

void stream_wait(struct connection *c) {
  haul_stream_info before = HAUL_STREAM_INFO_INIT, after = HAUL_STREAM_INFO_INIT;
  eventfd_t seen;
  pthread_mutex_lock(&c->lock);
  uint32_t flags = wanted(c);
  pthread_mutex_unlock(&c->lock);
  (void)haul_stream_query(c->stream, &before);
  int ready = flags != 0 ? haul_stream_poll(c->stream, flags) : 0;
  if (ready == 0) {
    /* The descriptor tells of the last question, which is not to be asked now where there is
     * none. */
    struct pollfd watched[2] = {{.fd = flags != 0 ? haul_stream_fd(c->stream) : -1, .events = POLLIN},
                                {.fd = c->wake, .events = POLLIN}};
    (void)poll(watched, 2, TICK_MS);
    (void)eventfd_read(c->wake, &seen);
    ready = flags != 0 ? haul_stream_poll(c->stream, flags) : 0;
  }
  (void)haul_stream_query(c->stream, &after);
  pthread_mutex_lock(&c->lock);
  c->moved_ns = after.arrived_bytes != before.arrived_bytes ? now_ns() : c->moved_ns;
  c->may_read = c->may_read || (ready & HAUL_STREAM_READABLE) != 0;
  c->fin_acked = c->fin_acked || (c->fin_sent && (ready & HAUL_STREAM_SENT) != 0);
  if ((ready & HAUL_STREAM_OVER) != 0) {
    judge_stream(c);
  }
  pthread_mutex_unlock(&c->lock);
}
