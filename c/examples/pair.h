/* Two ends of a connection in one program, for examples that need no second one. */
#ifndef PAIR_H
#define PAIR_H

#include "example.h"

struct end {
  haul_cm_channel *events;
  haul_cq *cq;
  haul_qp *qp;
};

struct pair {
  haul_context *context;
  haul_pd *pd;
  haul_listener *listener;
  struct sockaddr_in address;
  struct end near, far; /* which connects, which listens */
};

static inline void make_pair(struct pair *pair) {
  haul_context *context = pair->context = open_device();
  must(context, haul_pd_create(context, &pair->pd));
  struct end *ends[] = {&pair->near, &pair->far};
  for (int i = 0; i < 2; i++) {
    must(context, haul_cm_channel_create(context, &ends[i]->events));
    must(context, haul_cq_create(context, 256, NULL, 0, &ends[i]->cq));
    ends[i]->qp = NULL;
  }
  pair->listener = listen_somewhere(context, pair->far.events, &pair->address);
}

static inline haul_qp *make_qp(struct pair *pair, const struct end *end, haul_srq *srq) {
  haul_qp *qp;
  haul_qp_init init = HAUL_QP_INIT;
  init.send_cq = init.recv_cq = end->cq;
  init.srq = srq;
  init.max_send_sge = init.max_recv_sge = 2;
  init.max_inline = 256;
  must(pair->context, haul_qp_create(pair->pd, &init, &qp));
  return qp;
}

/* Connects two new queue pairs. */
static inline void join(struct pair *pair, haul_qp *near, haul_qp *far) {
  const struct sockaddr *address = (const struct sockaddr *)&pair->address;
  must(pair->context, haul_connect(near, address, sizeof pair->address, NULL, pair->near.events));
  haul_cm_event request = expect_event(pair->context, pair->far.events, HAUL_CM_CONNECT_REQUEST);
  must(pair->context, haul_accept(request.request, far, NULL));
  expect_event(pair->context, pair->near.events, HAUL_CM_ESTABLISHED);
  expect_event(pair->context, pair->far.events, HAUL_CM_ESTABLISHED);
}

static inline void make_and_join(struct pair *pair) {
  pair->near.qp = make_qp(pair, &pair->near, NULL);
  pair->far.qp = make_qp(pair, &pair->far, NULL);
  join(pair, pair->near.qp, pair->far.qp);
}

static inline void end_pair(struct pair *pair) {
  struct end *ends[] = {&pair->near, &pair->far};
  for (int i = 0; i < 2; i++) {
    haul_qp_destroy(ends[i]->qp);
    haul_cq_destroy(ends[i]->cq);
    haul_cm_channel_destroy(ends[i]->events);
  }
  haul_listener_destroy(pair->listener);
  haul_pd_destroy(pair->pd);
  haul_close(pair->context);
}

#endif
