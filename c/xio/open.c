/* Opening: to the peer's driver, or to a peer without one. */
#include "xio.h"

#include <errno.h>
#include <netdb.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

void set_port(struct sockaddr_storage *address, int port) {
  if (address->ss_family == AF_INET6) {
    ((struct sockaddr_in6 *)address)->sin6_port = htons((uint16_t)port);
  } else {
    ((struct sockaddr_in *)address)->sin_port = htons((uint16_t)port);
  }
}

int port_of(const struct sockaddr_storage *address) {
  return ntohs(address->ss_family == AF_INET6 ? ((const struct sockaddr_in6 *)address)->sin6_port
                                              : ((const struct sockaddr_in *)address)->sin_port);
}

socklen_t address_len(const struct sockaddr_storage *address) {
  return address->ss_family == AF_INET6 ? sizeof(struct sockaddr_in6) : sizeof(struct sockaddr_in);
}

/* A numeric address, or a name where `flags` do not forbid it. */
bool resolve(const char *host, const char *port, int flags, struct sockaddr_storage *out, char wrong[TEXT_MAX]) {
  struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = flags | AI_NUMERICSERV}, *found;
  int error = getaddrinfo(host, port, &hints, &found);
  if (error != 0) {
    snprintf(wrong, TEXT_MAX, "%s: %s", host != NULL ? host : "any address", gai_strerror(error));
    return false;
  }
  memcpy(out, found->ai_addr, found->ai_addrlen);
  freeaddrinfo(found);
  return true;
}

int wait_for(int fd, int wake, int64_t until_ns) {
  struct pollfd watched[2] = {{.fd = fd, .events = POLLIN}, {.fd = wake, .events = POLLIN}};
  int64_t left_ms = (until_ns - now_ns()) / 1000000;
  if (left_ms <= 0) {
    return 0;
  }
  (void)poll(watched, 2, (int)left_ms);
  return watched[1].revents != 0 ? -1 : 1;
}

/* Waits for an event of this channel: 1; 0 when the time is over; -1 when the opening is
 * canceled. */
int next_event(haul_cm_channel *events, int wake, int64_t until_ns, haul_cm_event *event) {
  for (;;) {
    *event = (haul_cm_event)HAUL_CM_EVENT_INIT;
    if (haul_cm_channel_poll(events, event) > 0) {
      return 1;
    }
    int waited = wait_for(haul_cm_channel_fd(events), wake, until_ns);
    if (waited <= 0) {
      return waited;
    }
  }
}

/* The line with which an end that protects its connections refuses others, if it is one. */
static void take_line(struct connection *c, const unsigned char *text, size_t len) {
  for (size_t i = 0; i < len; i++) {
    if (text[i] < ' ' || text[i] > '~') {
      return;
    }
  }
  if (len > 0) {
    snprintf(c->wrong, sizeof c->wrong, "the peer refuses: %.*s", (int)len, (const char *)text);
  }
}

/* Connects to the peer's driver. NO_DRIVER where nobody speaks RDMA. */
static enum opened connect_rdma(struct connection *c) {
  unsigned char hello[HELLO_LEN];
  haul_conn_param param = HAUL_CONN_PARAM_INIT;
  haul_cm_event event;
  struct sockaddr_storage to = c->peer;
  struct hello peers;
  hello_write(hello, &c->mine);
  param.private_data = hello;
  param.private_data_len = sizeof hello;
  set_port(&to, RDMA_PORT(port_of(&c->peer)));
  if (haul_connect(c->qp, (struct sockaddr *)&to, address_len(&to), &param, c->events) != HAUL_OK) {
    last_error(c->device->context, c->wrong);
    return OPEN_FAILED;
  }
  int got = next_event(c->events, c->wake, now_ns() + CONNECT_NS, &event);
  if (got <= 0) {
    snprintf(c->wrong, sizeof c->wrong, "no answer");
    return got < 0 ? OPEN_CANCELED : OPEN_FAILED;
  }
  switch (event.type) {
  case HAUL_CM_ESTABLISHED:
    if (hello_read(event.private_data, event.private_data_len, false, &peers, c->wrong) != NULL) {
      return OPEN_FAILED;
    }
    connection_begin(c, &peers);
    return OPENED;
  case HAUL_CM_REJECTED:
    if (hello_read(event.private_data, event.private_data_len, false, &peers, c->wrong) == NULL) {
      snprintf(c->wrong, sizeof c->wrong, "the peer's driver refuses: its log says why");
    } else {
      take_line(c, event.private_data, event.private_data_len);
    }
    return OPEN_FAILED;
  default:
    snprintf(c->wrong, sizeof c->wrong, "%s", event.reason);
    return NO_DRIVER;
  }
}

static bool connect_plain(struct connection *c) {
  int fd = socket(c->peer.ss_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (fd >= 0 && connect(fd, (struct sockaddr *)&c->peer, address_len(&c->peer)) == 0) {
    c->plain_fd = fd;
    return true;
  }
  snprintf(c->wrong, sizeof c->wrong, "TCP: %s", strerror(errno));
  if (fd >= 0) {
    close(fd);
  }
  return false;
}

/* What comes of an opening. */
struct opening {
  struct connection *c;
  enum opened how;
};

static void run_opened(void *argument) {
  struct opening opening = *(struct opening *)argument;
  struct connection *c = opening.c;
  globus_xio_operation_t op = c->open_op;
  globus_result_t result = GLOBUS_SUCCESS;
  free(argument);
  GlobusXIOName(haul);
  globus_xio_operation_disable_cancel(op);
  if (opening.how == OPENED && c->plain_fd >= 0 && !plain_begin(c)) {
    opening.how = OPEN_FAILED;
  }
  if (opening.how == OPEN_CANCELED) {
    result = GlobusXIOErrorCanceled();
  } else if (opening.how == NO_DRIVER) {
    result = failure(GLOBUS_XIO_ERROR_SYSTEM_ERROR,
                     "%s:%s: no haul driver answers there by %s (%s); give both ends the driver, or this one fallback=tcp",
                     c->contact.host, c->contact.port, c->options.channel, c->wrong);
  } else if (opening.how == OPEN_FAILED) {
    result = failure(GLOBUS_XIO_ERROR_SYSTEM_ERROR, "%s:%s: %s", c->contact.host, c->contact.port, c->wrong);
  }
  if (opening.how == OPENED) {
    connection_opened(c);
  } else {
    connection_drop(c);
    c = NULL;
  }
  globus_xio_driver_finished_open(c, op, result);
}

static void report_opened(struct connection *c, enum opened how) {
  struct opening *opening = malloc(sizeof *opening);
  if (opening == NULL) {
    abort();
  }
  *opening = (struct opening){.c = c, .how = how};
  in_globus(run_opened, opening);
}

/* The thread of a connection that this end opens. */
static void *run_connect(void *argument) {
  struct connection *c = argument;
  pthread_mutex_lock(&c->lock);
  c->thread = pthread_self();
  pthread_mutex_unlock(&c->lock);
  enum opened how = OPEN_FAILED;
  unsigned mode = c->options.stream ? MODE_STREAM : c->options.mode;
  if (resolve(c->contact.host, c->contact.port, 0, &c->peer, c->wrong) && connection_prepare(c, mode)) {
    how = c->options.stream ? connect_stream(c) : connect_rdma(c);
  }
  if (how == NO_DRIVER && c->options.fallback) {
    if (connect_plain(c)) {
      c->wrong[0] = '\0';
      how = OPENED;
    } else {
      how = OPEN_FAILED;
    }
  }
  bool has_more = how == OPENED && c->plain_fd < 0;
  report_opened(c, how);
  if (has_more) {
    serve(c);
  }
  return NULL;
}

static void cancel_open(globus_xio_operation_t op, void *argument, globus_xio_error_type_t why) {
  struct connection *c = argument;
  (void)op, (void)why;
  (void)eventfd_write(c->wake, 1);
}

static globus_result_t open_link(struct link *link, globus_xio_operation_t op) {
  struct connection *c = link->c;
  if (c->plain == NULL && !start_thread(run_serve, c)) {
    return failure(GLOBUS_XIO_ERROR_SYSTEM_RESOURCE, "no thread: %s", strerror(errno));
  }
  link->c = NULL;
  connection_opened(c);
  globus_xio_driver_finished_open(c, op, GLOBUS_SUCCESS);
  return GLOBUS_SUCCESS;
}

static globus_result_t open_contact(const globus_xio_contact_t *contact, const struct options *options,
                                    globus_xio_operation_t op) {
  char wrong[TEXT_MAX];
  if (contact == NULL || contact->host == NULL || contact->port == NULL) {
    return failure(GLOBUS_XIO_ERROR_CONTACT_STRING, "a contact is HOST:PORT");
  }
  struct device *device = device_take(options, wrong);
  if (device == NULL) {
    return failure(GLOBUS_XIO_ERROR_SYSTEM_ERROR, "device %s: %s", options->device, wrong);
  }
  struct connection *c = connection_new(options, device, true);
  if (c == NULL) {
    return no_memory();
  }
  c->open_op = op;
  c->wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  if (c->wake < 0 || globus_xio_contact_copy(&c->contact, contact) != GLOBUS_SUCCESS) {
    connection_drop(c);
    return no_memory();
  }
  if (globus_xio_operation_enable_cancel(op, cancel_open, c)) {
    connection_drop(c);
    GlobusXIOName(haul);
    return GlobusXIOErrorCanceled();
  }
  if (!start_thread(run_connect, c)) {
    globus_xio_operation_disable_cancel(op);
    connection_drop(c);
    return failure(GLOBUS_XIO_ERROR_SYSTEM_RESOURCE, "no thread: %s", strerror(errno));
  }
  return GLOBUS_SUCCESS;
}

globus_result_t driver_open(const globus_xio_contact_t *contact, void *link, void *attr, globus_xio_operation_t op) {
  struct options options;
  globus_result_t result = options_of(attr, &options);
  if (result != GLOBUS_SUCCESS) {
    return result;
  }
  return link != NULL ? open_link(link, op) : open_contact(contact, &options, op);
}
