/* Listening and accepting. */
#include "xio.h"

#include <errno.h>
#include <netdb.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

/* Ports that are tried for a pair of neighbours that are both free. */
#define PORT_TRIES 64

/* A request that came while another one was being accepted. */
struct waiting {
  struct waiting *next;
  haul_cm_event event;
};

struct server {
  struct options options;
  struct device *device;
  haul_cm_channel *events;
  haul_listener *listener;
  haul_stream_listener *streams; /* instead of both */
  int tcp; /* the TCP socket of the contact's port */
  int wake; /* an eventfd: the accept is canceled */
  globus_xio_operation_t op;
  struct waiting *waiting;
};

static void server_free(struct server *server) {
  haul_listener_destroy(server->listener);
  haul_stream_listener_destroy(server->streams);
  while (server->waiting != NULL) {
    struct waiting *next = server->waiting->next;
    (void)haul_reject(server->waiting->event.request, NULL, 0);
    free(server->waiting);
    server->waiting = next;
  }
  haul_cm_channel_destroy(server->events);
  if (server->tcp >= 0) {
    close(server->tcp);
  }
  if (server->wake >= 0) {
    close(server->wake);
  }
  if (server->device != NULL) {
    device_leave(server->device);
  }
  free(server);
}

/* Listens at this port and its neighbour; at any if it is 0. */
static bool listen_at(struct server *server, struct sockaddr_storage *address, int port, char wrong[TEXT_MAX]) {
  int one = 1;
  socklen_t len = sizeof *address;
  set_port(address, port);
  server->tcp = socket(address->ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (server->tcp < 0 || (port != 0 && setsockopt(server->tcp, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one) != 0) ||
      bind(server->tcp, (struct sockaddr *)address, address_len(address)) != 0 || listen(server->tcp, 64) != 0 ||
      getsockname(server->tcp, (struct sockaddr *)address, &len) != 0) {
    snprintf(wrong, TEXT_MAX, "TCP port %d: %s", port, strerror(errno));
  } else if (port_of(address) == UINT16_MAX) {
    snprintf(wrong, TEXT_MAX, "port %d has no neighbour", port_of(address));
  } else {
    struct sockaddr_storage rdma = *address;
    set_port(&rdma, RDMA_PORT(port_of(address)));
    haul_stream_options options = stream_options(&server->options);
    int listening = server->options.stream
                        ? haul_stream_listen(server->device->context, (struct sockaddr *)&rdma, address_len(&rdma), &options,
                                             &server->streams)
                        : haul_listen(server->device->context, (struct sockaddr *)&rdma, address_len(&rdma), server->events, 64,
                                      &server->listener);
    if (listening == HAUL_OK) {
      return true;
    }
    last_error(server->device->context, wrong);
  }
  if (server->tcp >= 0) {
    close(server->tcp);
    server->tcp = -1;
  }
  return false;
}

/* Tries the ports that options, contact or environment allow. */
static bool listen_somewhere(struct server *server, const globus_xio_contact_t *contact, struct sockaddr_storage *address,
                             char wrong[TEXT_MAX]) {
  const char *host = server->options.interface[0] != '\0' ? server->options.interface : NULL;
  int first = 0, last = 0;
  bool any = false;
  if (!resolve(host, "0", AI_PASSIVE | (host != NULL ? AI_NUMERICHOST : 0), address, wrong)) {
    return false;
  }
  if (server->options.port != 0) {
    first = last = server->options.port;
  } else if (contact != NULL && contact->port != NULL && atoi(contact->port) != 0) {
    first = last = atoi(contact->port);
  } else if (globus_xio_get_env_pair("GLOBUS_TCP_PORT_RANGE", &first, &last)) {
    last--;
  } else {
    any = true;
    last = PORT_TRIES;
  }
  snprintf(wrong, TEXT_MAX, "GLOBUS_TCP_PORT_RANGE has no two ports");
  for (int port = first; port <= last; port++) {
    if (listen_at(server, address, any ? 0 : port, wrong)) {
      return true;
    }
  }
  return false;
}

globus_result_t server_init(void *attr, const globus_xio_contact_t *contact, globus_xio_operation_t op) {
  struct options options;
  struct sockaddr_storage address;
  char wrong[TEXT_MAX], text[32];
  globus_xio_contact_t own;
  globus_result_t result = options_of(attr, &options);
  if (result != GLOBUS_SUCCESS) {
    return result;
  }
  struct server *server = calloc(1, sizeof *server);
  if (server == NULL) {
    return no_memory();
  }
  server->options = options;
  server->tcp = -1;
  server->wake = eventfd(0, EFD_CLOEXEC);
  server->device = device_take(&options, wrong);
  bool good = server->device != NULL && haul_cm_channel_create(server->device->context, &server->events) == HAUL_OK &&
              listen_somewhere(server, contact, &address, wrong);
  if (!good) {
    result = failure(GLOBUS_XIO_ERROR_SYSTEM_ERROR, "device %s: %s", options.device, wrong);
    server_free(server);
    return result;
  }
  /* GridFTP looks at the port only. */
  snprintf(text, sizeof text, address.ss_family == AF_INET6 ? "[::]:%d" : "0.0.0.0:%d", port_of(&address));
  result = globus_xio_contact_parse(&own, text);
  if (result == GLOBUS_SUCCESS) {
    result = globus_xio_driver_pass_server_init(op, &own, server);
    globus_xio_contact_destroy(&own);
  }
  if (result != GLOBUS_SUCCESS) {
    server_free(server);
  }
  return result;
}

globus_result_t server_destroy(void *server) {
  server_free(server);
  return GLOBUS_SUCCESS;
}

globus_result_t server_cntl(void *server, int command, va_list arguments) {
  (void)server, (void)arguments;
  return failure(GLOBUS_XIO_ERROR_COMMAND, "command %d is not known", command);
}

/* What comes of an accept. */
struct accepting {
  struct server *server;
  struct connection *c;
  enum opened how;
  char wrong[TEXT_MAX];
};

/* Answers a peer that is not welcome. */
static void refuse(haul_conn_request *request, enum hello_status status) {
  unsigned char at[HELLO_LEN];
  struct hello hello = {.version = HAUL_XIO_VERSION, .status = (uint16_t)status};
  hello_write(at, &hello);
  /* It fails where the peer has gone. */
  (void)haul_reject(request, at, sizeof at);
}

/* Waits until the connection that was accepted is there. What comes for others waits. */
static bool await_established(struct server *server, const struct connection *c, char wrong[TEXT_MAX]) {
  haul_cm_event event;
  int64_t until_ns = now_ns() + CONNECT_NS;
  struct waiting **last = &server->waiting;
  while (*last != NULL) {
    last = &(*last)->next;
  }
  while (next_event(server->events, server->wake, until_ns, &event) > 0) {
    if (event.type == HAUL_CM_CONNECT_REQUEST) {
      struct waiting *waiting = calloc(1, sizeof *waiting);
      if (waiting != NULL) {
        waiting->event = event;
        *last = waiting;
        last = &waiting->next;
      } else {
        (void)haul_reject(event.request, NULL, 0);
      }
    } else if (event.qp_num == c->qp_num) {
      snprintf(wrong, TEXT_MAX, "%s", event.reason);
      return event.type == HAUL_CM_ESTABLISHED;
    }
  }
  snprintf(wrong, TEXT_MAX, "the peer did not end what it began");
  return false;
}

/* Accepts a peer that speaks RDMA. */
static enum opened accept_rdma(struct server *server, const haul_cm_event *event, struct accepting *out) {
  struct hello peers;
  unsigned char hello[HELLO_LEN];
  haul_conn_param param = HAUL_CONN_PARAM_INIT;
  if (hello_read(event->private_data, event->private_data_len, false, &peers, out->wrong) != NULL) {
    refuse(event->request, peers.version != HAUL_XIO_VERSION ? HELLO_VERSION : HELLO_LIMITS);
    return OPEN_FAILED;
  }
  struct connection *c = connection_new(&server->options, device_share(server->device), false);
  if (c == NULL || !connection_prepare(c, peers.mode)) {
    snprintf(out->wrong, sizeof out->wrong, "%s", c != NULL ? c->wrong : "no memory");
    refuse(event->request, HELLO_LIMITS);
  } else {
    c->peer = event->peer;
    hello_write(hello, &c->mine);
    param.private_data = hello;
    param.private_data_len = sizeof hello;
    if (haul_accept(event->request, c->qp, &param) != HAUL_OK) {
      last_error(server->device->context, out->wrong);
    } else if (await_established(server, c, out->wrong)) {
      connection_begin(c, &peers);
      out->c = c;
      return OPENED;
    }
  }
  if (c != NULL) {
    connection_drop(c);
  }
  return OPEN_FAILED;
}

/* Accepts a peer that speaks UDT. */
static enum opened accept_stream(struct server *server, haul_stream *stream, struct accepting *out) {
  haul_stream_info info = HAUL_STREAM_INFO_INIT;
  struct connection *c = connection_new(&server->options, device_share(server->device), false);
  if (c == NULL) {
    haul_stream_destroy(stream);
    snprintf(out->wrong, sizeof out->wrong, "no memory");
    return OPEN_FAILED;
  }
  c->stream = stream;
  c->wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  enum opened how = OPEN_FAILED;
  if (c->wake < 0) {
    snprintf(out->wrong, sizeof out->wrong, "%s", strerror(errno));
  } else if (connection_prepare(c, MODE_STREAM)) {
    how = welcome_stream(c, server->wake, out->wrong);
  }
  if (how != OPENED) {
    connection_drop(c);
    return how;
  }
  /* It only fails for NULL. */
  (void)haul_stream_query(stream, &info);
  c->peer = info.peer;
  out->c = c;
  return OPENED;
}

/* Keeps the socket of a peer that is not welcome until the next one comes or the session ends: the
 * peer learns of it after the client of both does, which reports what it learns first. */
static void keep_unwelcome(int fd) {
  static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
  static int kept = -1;
  pthread_mutex_lock(&lock);
  int before = kept;
  kept = fd;
  pthread_mutex_unlock(&lock);
  if (before >= 0) {
    close(before);
  }
}

/* Accepts a peer that has come by plain TCP: only with fallback=tcp. */
static enum opened accept_plain(struct server *server, int fd, const struct sockaddr_storage *peer, struct accepting *out) {
  char host[NI_MAXHOST] = "somebody";
  (void)getnameinfo((const struct sockaddr *)peer, sizeof *peer, host, sizeof host, NULL, 0, NI_NUMERICHOST);
  if (!server->options.fallback) {
    keep_unwelcome(fd);
    snprintf(out->wrong, sizeof out->wrong,
             "%s came by plain TCP: it does not use the haul driver; give it the driver, or this end fallback=tcp", host);
    return OPEN_FAILED;
  }
  struct connection *c = connection_new(&server->options, NULL, false);
  if (c == NULL) {
    close(fd);
    snprintf(out->wrong, sizeof out->wrong, "no memory");
    return OPEN_FAILED;
  }
  c->peer = *peer;
  out->c = c;
  c->plain_fd = fd;
  return OPENED;
}

/* Waits for a peer of either kind. */
static enum opened accept_any(struct server *server, struct accepting *out) {
  for (;;) {
    haul_cm_event event = HAUL_CM_EVENT_INIT;
    struct sockaddr_storage peer;
    socklen_t len = sizeof peer;
    haul_stream *stream = NULL;
    int peers = server->streams != NULL ? haul_stream_listener_fd(server->streams) : haul_cm_channel_fd(server->events);
    struct pollfd watched[3] = {{.fd = peers, .events = POLLIN},
                                {.fd = server->tcp, .events = POLLIN},
                                {.fd = server->wake, .events = POLLIN}};
    struct waiting *waiting = server->waiting;
    if (waiting != NULL) {
      event = waiting->event;
      server->waiting = waiting->next;
      free(waiting);
      return accept_rdma(server, &event, out);
    }
    if (server->streams != NULL) {
      if (haul_stream_accept(server->streams, &stream) > 0) {
        return accept_stream(server, stream, out);
      }
    } else if (haul_cm_channel_poll(server->events, &event) > 0) {
      if (event.type == HAUL_CM_CONNECT_REQUEST) {
        return accept_rdma(server, &event, out);
      }
      continue; /* the end of a connection that was accepted before */
    }
    int fd = accept4(server->tcp, (struct sockaddr *)&peer, &len, SOCK_CLOEXEC);
    if (fd >= 0) {
      return accept_plain(server, fd, &peer, out);
    }
    (void)poll(watched, 3, -1);
    if (watched[2].revents != 0) {
      return OPEN_CANCELED;
    }
  }
}

static void run_accepted(void *argument) {
  struct accepting *out = argument;
  globus_xio_operation_t op = out->server->op;
  globus_result_t result = GLOBUS_SUCCESS;
  struct link *link = NULL;
  GlobusXIOName(haul);
  globus_xio_operation_disable_cancel(op);
  if (out->how == OPENED && out->c->plain_fd >= 0 && !plain_begin(out->c)) {
    out->how = OPEN_FAILED;
    snprintf(out->wrong, sizeof out->wrong, "%s", out->c->wrong);
  }
  if (out->how == OPENED && (link = malloc(sizeof *link)) == NULL) {
    out->how = OPEN_FAILED;
    snprintf(out->wrong, sizeof out->wrong, "no memory");
  }
  if (out->how == OPENED) {
    link->c = out->c;
  } else {
    result = out->how == OPEN_CANCELED ? GlobusXIOErrorCanceled()
                                       : failure(GLOBUS_XIO_ERROR_SYSTEM_ERROR, "%s", out->wrong);
    if (out->c != NULL) {
      connection_drop(out->c);
    }
  }
  free(out);
  globus_xio_driver_finished_accept(op, link, result);
}

static void *run_accept(void *argument) {
  struct accepting *out = argument;
  out->how = accept_any(out->server, out);
  in_globus(run_accepted, out);
  return NULL;
}

static void cancel_accept(globus_xio_operation_t op, void *argument, globus_xio_error_type_t why) {
  struct server *server = argument;
  (void)op, (void)why;
  (void)eventfd_write(server->wake, 1);
}

globus_result_t server_accept(void *argument, globus_xio_operation_t op) {
  struct server *server = argument;
  struct accepting *out = calloc(1, sizeof *out);
  eventfd_t seen;
  if (out == NULL) {
    return no_memory();
  }
  out->server = server;
  server->op = op;
  /* Of a cancellation that came too late for the accept before this one. */
  struct pollfd woken = {.fd = server->wake, .events = POLLIN};
  if (poll(&woken, 1, 0) > 0) {
    (void)eventfd_read(server->wake, &seen);
  }
  if (globus_xio_operation_enable_cancel(op, cancel_accept, server)) {
    free(out);
    GlobusXIOName(haul);
    return GlobusXIOErrorCanceled();
  }
  if (!start_thread(run_accept, out)) {
    globus_xio_operation_disable_cancel(op);
    free(out);
    return failure(GLOBUS_XIO_ERROR_SYSTEM_RESOURCE, "no thread: %s", strerror(errno));
  }
  return GLOBUS_SUCCESS;
}

globus_result_t link_cntl(void *link, int command, va_list arguments) {
  return driver_cntl(((struct link *)link)->c, command, arguments);
}

globus_result_t link_destroy(void *argument) {
  struct link *link = argument;
  if (link != NULL && link->c != NULL) {
    connection_drop(link->c);
  }
  free(link);
  return GLOBUS_SUCCESS;
}
