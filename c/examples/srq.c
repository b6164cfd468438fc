/*
 * srq: many connections that share their receive buffers, which are filled up again when they run
 * low.
 */
#include "pair.h"

#define CONNECTIONS 8
#define MESSAGES 500
#define BUFFERS 64
#define LOW 16

struct message {
  uint32_t connection, number;
};

static void refill(struct pair *pair, haul_srq *srq, const haul_mr_info *buffers, const uint64_t *free, size_t count) {
  for (size_t i = 0; i < count; i++) {
    haul_sge piece = {.addr = buffers->addr + free[i] * sizeof(struct message), .len = sizeof(struct message), .lkey = buffers->lkey};
    haul_recv_wr request = {.wr_id = free[i], .sges = &piece, .num_sge = 1};
    must(pair->context, haul_srq_post_recv(srq, &request, 1, NULL));
  }
}

/* Sends one message on each connection, without waiting. */
static void send_round(struct pair *pair, haul_qp **qps, uint32_t round) {
  for (uint32_t connection = 0; connection < CONNECTIONS; connection++) {
    struct message message = {.connection = connection, .number = round};
    haul_sge piece = {.addr = (uintptr_t)&message, .len = sizeof message};
    haul_send_wr request = {.wr_id = round, .opcode = HAUL_WR_SEND, .flags = HAUL_SEND_INLINE | HAUL_SEND_SIGNALED, .sges = &piece, .num_sge = 1};
    must(pair->context, haul_post_send(qps[connection], &request, 1, NULL));
  }
}

/* The event must come, by its file descriptor. */
static void expect_limit(struct pair *pair, uint64_t token) {
  struct pollfd fd = {.fd = must(pair->context, haul_async_fd(pair->context)), .events = POLLIN};
  if (poll(&fd, 1, (int)(PATIENCE_NS / 1000000)) != 1) {
    fail("no event reports that buffers run low");
  }
  haul_async_event event = HAUL_ASYNC_EVENT_INIT;
  must(pair->context, haul_async_poll(pair->context, &event));
  if (event.type != HAUL_ASYNC_SRQ_LIMIT_REACHED || event.token != token) {
    fail("asynchronous event %u instead of the limit's", event.type);
  }
}

int main(void) {
  struct pair pair;
  haul_srq *srq;
  haul_mr *mr;
  haul_qp *near[CONNECTIONS], *far[CONNECTIONS];
  struct message buffers[BUFFERS];
  uint32_t numbers[CONNECTIONS], next[CONNECTIONS] = {0};
  uint64_t free[BUFFERS], received = 0;
  size_t free_count = BUFFERS;

  make_pair(&pair);
  haul_srq_init init = HAUL_SRQ_INIT;
  init.max_wr = BUFFERS;
  init.token = 7;
  must(pair.context, haul_srq_create(pair.pd, &init, &srq));
  must(pair.context, haul_mr_reg(pair.pd, buffers, sizeof buffers, HAUL_ACCESS_LOCAL_WRITE, &mr));
  haul_mr_info info = mr_info(pair.context, mr);
  for (uint64_t i = 0; i < BUFFERS; i++) {
    free[i] = i;
  }
  refill(&pair, srq, &info, free, free_count);
  free_count = 0;
  must(pair.context, haul_srq_arm_limit(srq, LOW));
  for (int i = 0; i < CONNECTIONS; i++) {
    near[i] = make_qp(&pair, &pair.near, NULL);
    far[i] = make_qp(&pair, &pair.far, srq);
    join(&pair, near[i], far[i]);
    haul_qp_info qp = HAUL_QP_INFO_INIT;
    must(pair.context, haul_qp_query(far[i], &qp));
    numbers[i] = qp.qp_num;
  }

  for (uint32_t round = 0; round < MESSAGES; round++) {
    send_round(&pair, near, round);
    for (int i = 0; i < CONNECTIONS; i++) {
      next_success(pair.context, pair.near.cq);
      haul_wc wc = next_success(pair.context, pair.far.cq);
      const struct message *message = &buffers[wc.wr_id];
      uint32_t connection = message->connection;
      if (connection >= CONNECTIONS || wc.qp_num != numbers[connection] || wc.byte_len != sizeof *message) {
        fail("a message that nobody has sent");
      }
      if (message->number != next[connection]++) {
        fail("connection %u is out of order", connection);
      }
      free[free_count++] = wc.wr_id;
      received++;
    }
    if (BUFFERS - free_count < LOW) {
      expect_limit(&pair, init.token);
      refill(&pair, srq, &info, free, free_count);
      free_count = 0;
      must(pair.context, haul_srq_arm_limit(srq, LOW));
    }
  }
  printf("%llu messages of %d connections through %d buffers\n", (unsigned long long)received, CONNECTIONS, BUFFERS);

  for (int i = 0; i < CONNECTIONS; i++) {
    haul_qp_destroy(near[i]);
    haul_qp_destroy(far[i]);
  }
  must(pair.context, haul_mr_dereg(mr));
  haul_srq_destroy(srq);
  end_pair(&pair);
  return 0;
}
