/* Ends of datagram services on loopback. */
#ifndef DATAGRAM_H
#define DATAGRAM_H

#include "example.h"

struct end {
  haul_cq *cq;
  haul_qp *qp;
  haul_peer own; /* what others call it */
};

/* The device that HAUL_DATAGRAM_DEVICE names, else one that works everywhere. */
static inline haul_context *open_datagram_device(uint64_t cap) {
  haul_context *context;
  haul_device_info info = HAUL_DEVICE_INFO_INIT;
  const char *name = getenv("HAUL_DATAGRAM_DEVICE");
  must(NULL, haul_open(name != NULL ? name : "soft-udp", NULL, &context));
  must(context, haul_query(context, &info));
  if ((info.caps & cap) != cap) {
    fail("%s does not have what this program shows", info.name);
  }
  return context;
}

/* A queue pair of a datagram service at a free port of loopback. */
static inline void make_end(haul_context *context, haul_pd *pd, uint32_t type, struct end *end) {
  struct sockaddr_in loopback = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
  haul_qp_init init = HAUL_QP_INIT;
  must(context, haul_cq_create(context, 1024, NULL, 0, &end->cq));
  init.type = type;
  init.send_cq = init.recv_cq = end->cq;
  init.max_inline = 256;
  must(context, haul_qp_create(pd, &init, &end->qp));
  must(context, haul_qp_bind(end->qp, (struct sockaddr *)&loopback, sizeof loopback, &end->own));
}

static inline void end_end(struct end *end) {
  haul_qp_destroy(end->qp);
  haul_cq_destroy(end->cq);
}

/* Posts one request to one peer. */
static inline void post_to(haul_context *context, struct end *end, const haul_peer *peer, const haul_send_wr *request) {
  must(context, haul_post_send_to(end->qp, peer, request, 1, NULL));
}

/* A short message to a peer, copied when it is posted. */
static inline void say_to(haul_context *context, struct end *end, const haul_peer *peer, const void *bytes, uint32_t len) {
  haul_sge piece = {.addr = (uintptr_t)bytes, .len = len};
  haul_send_wr request = {.opcode = HAUL_WR_SEND, .flags = HAUL_SEND_INLINE | HAUL_SEND_SIGNALED, .sges = &piece, .num_sge = 1};
  post_to(context, end, peer, &request);
}

/* Takes what is complete, so that there is room for more: how many. None of it may have failed. */
static inline uint32_t reap(haul_context *context, struct end *end) {
  haul_wc wc[16];
  int found;
  uint32_t all = 0;
  while ((found = must(context, haul_cq_poll(end->cq, wc, 16))) > 0) {
    for (int i = 0; i < found; i++) {
      if (wc[i].status != HAUL_WC_SUCCESS) {
        fail("work request %llu: %s", (unsigned long long)wc[i].wr_id, haul_wc_status_str(wc[i].status));
      }
    }
    all += (uint32_t)found;
  }
  return all;
}

static inline int same_peer(const haul_peer *one, const haul_peer *other) {
  return memcmp(one->addr, other->addr, sizeof one->addr) == 0 && one->port == other->port && one->qp_num == other->qp_num;
}

#endif
