/*
 * rd: reliable datagrams. One queue pair serves many others: every message once, in order from each
 * of them; a Write that a later Send announces is there; reads and atomics work as on connections.
 */
#include "datagram.h"

#define SPOKES 4
#define MESSAGES 200
#define BUFFERS 32
#define BYTES 4096

struct message {
  uint32_t spoke, number;
};

/* What the hub's memory holds: a place for each spoke, and a counter. */
struct board {
  uint64_t places[SPOKES][BYTES / 8];
  uint64_t counter;
};

static const haul_sge *buffer(const haul_mr_info *info, uint64_t index, haul_sge *piece) {
  *piece = (haul_sge){.addr = info->addr + index * sizeof(struct message), .len = sizeof(struct message), .lkey = info->lkey};
  return piece;
}

/* Every spoke sends its messages; the hub must get each once, in order, from the sender that it
 * names. */
static void send_all(haul_context *context, struct end *hub, struct end *spokes, haul_mr *buffers) {
  haul_mr_info info = mr_info(context, buffers);
  const struct message *received = info.ptr;
  uint32_t next[SPOKES] = {0}, completed[SPOKES] = {0};
  haul_sge piece;
  for (uint64_t i = 0; i < BUFFERS; i++) {
    post_recv(context, hub->qp, i, buffer(&info, i, &piece));
  }
  /* As many as one of them may have outstanding; the rest as they are received. */
  uint32_t sent = 0;
  for (int left = SPOKES * MESSAGES; left > 0; left--) {
    while (sent < MESSAGES && sent < (uint32_t)(SPOKES * MESSAGES - left) / SPOKES + 8) {
      for (uint32_t spoke = 0; spoke < SPOKES; spoke++) {
        struct message message = {.spoke = spoke, .number = sent};
        say_to(context, &spokes[spoke], &hub->own, &message, sizeof message);
        completed[spoke] += reap(context, &spokes[spoke]);
      }
      sent++;
    }
    haul_wc wc = next_success(context, hub->cq);
    haul_peer from;
    struct message message = received[wc.wr_id];
    if (wc.opcode != HAUL_WC_RECV || wc.byte_len != sizeof message || message.spoke >= SPOKES) {
      fail("a message that nobody has sent");
    }
    if (must(context, haul_wc_peer(&wc, &from)) != 1 || !same_peer(&from, &spokes[message.spoke].own)) {
      fail("a message does not come from the sender that it names");
    }
    if (message.number != next[message.spoke]++) {
      fail("message %u of spoke %u is lost, out of order, or here twice", message.number, message.spoke);
    }
    post_recv(context, hub->qp, wc.wr_id, buffer(&info, wc.wr_id, &piece));
  }
  for (uint32_t spoke = 0; spoke < SPOKES; spoke++) {
    while (completed[spoke] < MESSAGES) {
      next_success(context, spokes[spoke].cq);
      completed[spoke]++;
    }
  }
}

/* Writes a pattern into the hub's memory, announces it, and reads it back. */
static void write_and_read(haul_context *context, struct end *hub, struct end *spoke, uint32_t index, haul_mr *local, haul_mr *board) {
  haul_mr_info here = mr_info(context, local), there = mr_info(context, board);
  const struct board *shared = there.ptr;
  uint64_t place = there.addr + index * (uint64_t)BYTES;
  haul_sge piece = {.addr = here.addr, .len = BYTES, .lkey = here.lkey};
  haul_send_wr write = {.wr_id = 1, .opcode = HAUL_WR_RDMA_WRITE, .sges = &piece, .num_sge = 1, .remote_addr = place, .rkey = there.rkey};
  struct message announcement = {.spoke = index, .number = MESSAGES};
  pattern_fill(here.ptr, BYTES);
  post_to(context, spoke, &hub->own, &write);
  say_to(context, spoke, &hub->own, &announcement, sizeof announcement);
  next_success(context, hub->cq);
  if (next_success(context, spoke->cq).opcode != HAUL_WC_SEND) {
    fail("an announcement must complete first");
  }
  pattern_check(shared->places[index], BYTES);

  memset(here.ptr, 0, BYTES);
  haul_send_wr read = {.wr_id = 2, .opcode = HAUL_WR_RDMA_READ, .flags = HAUL_SEND_SIGNALED, .sges = &piece, .num_sge = 1,
                       .remote_addr = place, .rkey = there.rkey};
  post_to(context, spoke, &hub->own, &read);
  if (next_success(context, spoke->cq).wr_id != 2) {
    fail("the read did not complete");
  }
  pattern_check(here.ptr, BYTES);
}

/* Adds to the hub's counter; each spoke must see what the ones before it have made of it. */
static void count_up(haul_context *context, struct end *hub, struct end *spoke, uint32_t index, haul_mr *local, haul_mr *board) {
  haul_mr_info here = mr_info(context, local), there = mr_info(context, board);
  uint64_t *result = here.ptr;
  haul_sge piece = {.addr = here.addr, .len = 8, .lkey = here.lkey};
  haul_send_wr add = {.wr_id = 3, .opcode = HAUL_WR_FETCH_ADD, .flags = HAUL_SEND_SIGNALED, .sges = &piece, .num_sge = 1,
                      .remote_addr = there.addr + offsetof(struct board, counter), .rkey = there.rkey, .compare_add = 10};
  post_to(context, spoke, &hub->own, &add);
  next_success(context, spoke->cq);
  if (*result != index * 10u) {
    fail("the counter was %llu for spoke %u", (unsigned long long)*result, index);
  }
}

int main(void) {
  haul_context *context = open_datagram_device(HAUL_CAP_RD);
  haul_pd *pd;
  haul_mr *buffers, *board, *local;
  struct end hub, spokes[SPOKES];
  must(context, haul_pd_create(context, &pd));
  make_end(context, pd, HAUL_QPT_RD, &hub);
  for (int i = 0; i < SPOKES; i++) {
    make_end(context, pd, HAUL_QPT_RD, &spokes[i]);
  }
  uint32_t remote = HAUL_ACCESS_REMOTE_WRITE | HAUL_ACCESS_REMOTE_READ | HAUL_ACCESS_REMOTE_ATOMIC;
  must(context, haul_mr_alloc(pd, BUFFERS * sizeof(struct message), HAUL_ACCESS_LOCAL_WRITE, &buffers));
  must(context, haul_mr_alloc(pd, sizeof(struct board), HAUL_ACCESS_LOCAL_WRITE | remote, &board));
  must(context, haul_mr_alloc(pd, BYTES, HAUL_ACCESS_LOCAL_WRITE, &local));

  send_all(context, &hub, spokes, buffers);
  for (uint32_t i = 0; i < SPOKES; i++) {
    write_and_read(context, &hub, &spokes[i], i, local, board);
    count_up(context, &hub, &spokes[i], i, local, board);
  }
  haul_datagram_statistics counted = HAUL_DATAGRAM_STATISTICS_INIT;
  must(context, haul_qp_datagram_statistics(hub.qp, &counted));
  if (counted.peers < SPOKES) {
    fail("%llu peers are too few", (unsigned long long)counted.peers);
  }
  printf("%d messages of %d peers at one queue pair\n", SPOKES * MESSAGES, SPOKES);

  must(context, haul_mr_dereg(buffers));
  must(context, haul_mr_dereg(board));
  must(context, haul_mr_dereg(local));
  for (int i = 0; i < SPOKES; i++) {
    end_end(&spokes[i]);
  }
  end_end(&hub);
  haul_pd_destroy(pd);
  haul_close(context);
  return 0;
}
