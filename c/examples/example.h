/* What the examples share: how they fail, and the first steps of every connection. */
#ifndef EXAMPLE_H
#define EXAMPLE_H

#include <haul.h>

#include <netdb.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* Longer than anything here takes. */
#define PATIENCE_NS (60 * (int64_t)1000000000)

static inline void fail(const char *format, ...) {
  va_list arguments;
  va_start(arguments, format);
  vfprintf(stderr, format, arguments);
  va_end(arguments);
  fputc('\n', stderr);
  exit(1);
}

/* The result of a call, which must not be an error. */
static inline int must(haul_context *context, int result) {
  if (result < 0) {
    char text[512];
    haul_last_error(context, text, sizeof text);
    fail("%s: %s", haul_strerror(result), text);
  }
  return result;
}

static inline int64_t now_ns(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

static inline unsigned long number(const char *text) {
  char *end;
  unsigned long value = strtoul(text, &end, 10);
  if (end == text || *end != '\0') {
    fail("%s is not a number", text);
  }
  return value;
}

/* The device that HAUL_DEVICE names, else one that works everywhere. If HAUL_ENGINE names
 * processors, only the device's engine sends and receives, on them. */
static inline haul_context *open_device(void) {
  haul_context *context;
  const char *name = getenv("HAUL_DEVICE");
  haul_open_options options = HAUL_OPEN_OPTIONS_INIT;
  options.engine_cpus = getenv("HAUL_ENGINE");
  options.flags = options.engine_cpus != NULL ? HAUL_OPEN_ENGINE : 0;
  if (haul_abi_version() >> 16 != HAUL_ABI_VERSION >> 16) {
    fail("the library has another ABI than this program");
  }
  must(NULL, haul_open(name != NULL ? name : "soft", &options, &context));
  return context;
}

/* Listens on any free port of loopback and prints it. */
static inline haul_listener *listen_somewhere(haul_context *context, haul_cm_channel *channel, struct sockaddr_in *address) {
  haul_listener *listener;
  socklen_t len = sizeof *address;
  memset(address, 0, sizeof *address);
  address->sin_family = AF_INET;
  address->sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  must(context, haul_listen(context, (struct sockaddr *)address, sizeof *address, channel, 16, &listener));
  must(context, haul_listener_address(listener, (struct sockaddr *)address, &len));
  printf("listening on port %u\n", ntohs(address->sin_port));
  fflush(stdout);
  return listener;
}

static inline void connect_to(haul_context *context, haul_qp *qp, const char *host, const char *port,
                              const haul_conn_param *param, haul_cm_channel *channel) {
  struct addrinfo hints, *found;
  memset(&hints, 0, sizeof hints);
  hints.ai_socktype = SOCK_STREAM;
  int error = getaddrinfo(host, port, &hints, &found);
  if (error != 0) {
    fail("%s port %s: %s", host, port, gai_strerror(error));
  }
  must(context, haul_connect(qp, found->ai_addr, found->ai_addrlen, param, channel));
  freeaddrinfo(found);
}

/* The next event, which must be of this type. */
static inline haul_cm_event expect_event(haul_context *context, haul_cm_channel *channel, uint32_t type) {
  haul_cm_event event = HAUL_CM_EVENT_INIT;
  if (must(context, haul_cm_channel_wait(channel, PATIENCE_NS, &event)) == 0) {
    fail("nothing happened, event %u was expected", type);
  }
  if (event.type != type) {
    fail("event %u instead of %u: %s", event.type, type, event.reason);
  }
  return event;
}

/* The next completion. */
static inline haul_wc next_completion(haul_context *context, haul_cq *cq) {
  haul_wc wc;
  if (must(context, haul_cq_wait(cq, PATIENCE_NS, &wc, 1)) == 0) {
    fail("no completion came");
  }
  return wc;
}

/* The next completion, which must be a success. */
static inline haul_wc next_success(haul_context *context, haul_cq *cq) {
  haul_wc wc = next_completion(context, cq);
  if (wc.status != HAUL_WC_SUCCESS) {
    fail("work request %llu: %s", (unsigned long long)wc.wr_id, haul_wc_status_str(wc.status));
  }
  return wc;
}

static inline haul_mr_info mr_info(haul_context *context, haul_mr *mr) {
  haul_mr_info info = HAUL_MR_INFO_INIT;
  must(context, haul_mr_query(mr, &info));
  return info;
}

static inline void post_recv(haul_context *context, haul_qp *qp, uint64_t wr_id, const haul_sge *piece) {
  haul_recv_wr request = {.wr_id = wr_id, .sges = piece, .num_sge = 1};
  must(context, haul_post_recv(qp, &request, 1, NULL));
}

/* Tells the peer where a region is: in private data, in network byte order. */
struct where {
  unsigned char bytes[20];
};

static inline struct where where(const haul_mr_info *info) {
  struct where where;
  uint64_t fields[] = {info->addr, info->len};
  for (int i = 0; i < 16; i++) {
    where.bytes[i] = (unsigned char)(fields[i / 8] >> (56 - i % 8 * 8));
  }
  for (int i = 0; i < 4; i++) {
    where.bytes[16 + i] = (unsigned char)(info->rkey >> (24 - i * 8));
  }
  return where;
}

static inline void whereabouts(const haul_cm_event *event, uint64_t *addr, uint64_t *len, uint32_t *rkey) {
  struct where where;
  if (event->private_data_len < sizeof where) {
    fail("the peer did not send the address of its region");
  }
  memcpy(&where, event->private_data, sizeof where);
  *addr = *len = *rkey = 0;
  for (int i = 0; i < 8; i++) {
    *addr = *addr << 8 | where.bytes[i];
    *len = *len << 8 | where.bytes[8 + i];
  }
  for (int i = 0; i < 4; i++) {
    *rkey = *rkey << 8 | where.bytes[16 + i];
  }
}

/* A pattern in which no two places within reach of a mistake are alike. */
static inline void pattern_fill(uint64_t *words, size_t bytes) {
  for (size_t i = 0; i < bytes / 8; i++) {
    words[i] = (i + 1) * 0x9e3779b97f4a7c15u;
  }
}

static inline void pattern_check(const uint64_t *words, size_t bytes) {
  for (size_t i = 0; i < bytes / 8; i++) {
    if (words[i] != (i + 1) * 0x9e3779b97f4a7c15u) {
      fail("wrong data at byte %zu", i * 8);
    }
  }
}

#endif
