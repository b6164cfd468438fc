/*
 * pingpong: how long a message of a few bytes takes to the peer and back.
 *
 *   pingpong                              waits for a peer on loopback and answers
 *   pingpong HOST PORT [ROUNDS [BYTES]]   measures
 *
 * With HAUL_SLEEP=1 in the environment an end sleeps until the file descriptor of its completion
 * channel is readable, as a program with an event loop would; without, it polls busily.
 */
#include "example.h"

struct end {
  haul_context *context;
  haul_cm_channel *events;
  haul_pd *pd;
  haul_comp_channel *channel;
  haul_cq *cq;
  haul_mr *mr;
  haul_qp *qp;
  haul_sge in, out;
  int sleeps;
};

static void make(struct end *end, uint32_t bytes) {
  end->sleeps = getenv("HAUL_SLEEP") != NULL;
  haul_context *context = end->context = open_device();
  must(context, haul_cm_channel_create(context, &end->events));
  must(context, haul_pd_create(context, &end->pd));
  must(context, haul_comp_channel_create(context, &end->channel));
  must(context, haul_cq_create(context, 64, end->channel, 0, &end->cq));
  must(context, haul_mr_alloc(end->pd, 2 * (size_t)bytes, HAUL_ACCESS_LOCAL_WRITE, &end->mr));
  haul_qp_init init = HAUL_QP_INIT;
  init.send_cq = init.recv_cq = end->cq;
  must(context, haul_qp_create(end->pd, &init, &end->qp));
  haul_mr_info info = mr_info(context, end->mr);
  end->in = (haul_sge){.addr = info.addr, .len = bytes, .lkey = info.lkey};
  end->out = (haul_sge){.addr = info.addr + bytes, .len = bytes, .lkey = info.lkey};
  memset((char *)info.ptr + bytes, 'x', bytes);
}

static void end_all(struct end *end) {
  haul_qp_destroy(end->qp);
  haul_mr_dereg(end->mr);
  haul_cq_destroy(end->cq);
  haul_comp_channel_destroy(end->channel);
  haul_pd_destroy(end->pd);
  haul_cm_channel_destroy(end->events);
  haul_close(end->context);
}

/* Sleeps until there may be completions: armed first, then looked again, so that none is missed. */
static int sleep_and_poll(struct end *end, haul_wc *wc) {
  must(end->context, haul_cq_arm(end->cq, 0));
  int found = must(end->context, haul_cq_poll(end->cq, wc, 1));
  if (found > 0) {
    return found;
  }
  struct pollfd fd = {.fd = must(end->context, haul_comp_channel_fd(end->channel)), .events = POLLIN};
  if (poll(&fd, 1, (int)(PATIENCE_NS / 1000000)) <= 0) {
    fail("the completion channel stayed silent");
  }
  uint64_t token;
  must(end->context, haul_comp_channel_poll(end->channel, &token));
  return must(end->context, haul_cq_poll(end->cq, wc, 1));
}

/* Waits for the next message; completions of sends pass by. False when the peer is gone. */
static int receive(struct end *end) {
  for (;;) {
    haul_wc wc;
    int found = must(end->context, haul_cq_poll(end->cq, &wc, 1));
    if (found == 0 && end->sleeps) {
      found = sleep_and_poll(end, &wc);
    }
    if (found > 0 && wc.status == HAUL_WC_WR_FLUSH_ERR) {
      return 0;
    }
    if (found > 0 && wc.status != HAUL_WC_SUCCESS) {
      fail("%s", haul_wc_status_str(wc.status));
    }
    if (found > 0 && wc.opcode == HAUL_WC_RECV) {
      return 1;
    }
  }
}

/* One in 16 sends is signalled: that is enough to get the queue's places back. */
static void send_one(struct end *end, unsigned long round) {
  haul_send_wr request = {
      .wr_id = round, .opcode = HAUL_WR_SEND, .flags = round % 16 == 0 ? HAUL_SEND_SIGNALED : 0, .sges = &end->out, .num_sge = 1};
  must(end->context, haul_post_send(end->qp, &request, 1, NULL));
}

static void serve(void) {
  struct end end;
  struct sockaddr_in address;
  make(&end, 4096);
  haul_listener *listener = listen_somewhere(end.context, end.events, &address);
  haul_cm_event request = expect_event(end.context, end.events, HAUL_CM_CONNECT_REQUEST);
  if (request.private_data_len != 1 || request.private_data[0] == 0 || request.private_data[0] > 12) {
    fail("the peer did not send the length of its messages");
  }
  end.out.len = 1u << request.private_data[0];
  post_recv(end.context, end.qp, 0, &end.in);
  must(end.context, haul_accept(request.request, end.qp, NULL));
  expect_event(end.context, end.events, HAUL_CM_ESTABLISHED);
  unsigned long rounds = 0;
  while (receive(&end)) {
    post_recv(end.context, end.qp, 0, &end.in);
    send_one(&end, rounds++);
  }
  printf("answered %lu messages\n", rounds);
  haul_listener_destroy(listener);
  end_all(&end);
}

static void measure(const char *host, const char *port, unsigned long rounds, unsigned char log_bytes) {
  struct end end;
  make(&end, 1u << log_bytes);
  post_recv(end.context, end.qp, 0, &end.in);
  haul_conn_param param = HAUL_CONN_PARAM_INIT;
  param.private_data = &log_bytes;
  param.private_data_len = 1;
  connect_to(end.context, end.qp, host, port, &param, end.events);
  expect_event(end.context, end.events, HAUL_CM_ESTABLISHED);
  int64_t start = now_ns();
  for (unsigned long round = 0; round < rounds; round++) {
    send_one(&end, round);
    if (!receive(&end)) {
      fail("the peer is gone");
    }
    post_recv(end.context, end.qp, 0, &end.in);
  }
  double half_us = (double)(now_ns() - start) / (double)rounds / 2000;
  printf("%u bytes, %lu rounds: %.2f us half-way\n", 1u << log_bytes, rounds, half_us);
  must(end.context, haul_disconnect(end.qp));
  expect_event(end.context, end.events, HAUL_CM_DISCONNECTED);
  end_all(&end);
}

int main(int count, char **arguments) {
  unsigned long rounds = count > 3 ? number(arguments[3]) : 10000;
  unsigned long bytes = count > 4 ? number(arguments[4]) : 64;
  unsigned char log_bytes = 1;
  while (log_bytes < 12 && 1ul << log_bytes < bytes) {
    log_bytes++;
  }
  if (count == 1) {
    serve();
  } else if (count > 2 && rounds > 0) {
    measure(arguments[1], arguments[2], rounds, log_bytes);
  } else {
    fail("usage: pingpong [HOST PORT [ROUNDS [BYTES]]]");
  }
  return 0;
}
