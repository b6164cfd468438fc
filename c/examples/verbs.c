/*
 * verbs: every operation that a reliable connection has, each with a look at what it has done.
 */
#include "pair.h"

static struct pair pair;
static haul_mr *near_mr, *far_mr;
static haul_mr_info near_info, far_info;
static uint64_t near_words[64], far_words[64];

static haul_sge piece(const haul_mr_info *info, uint64_t offset, uint32_t len) {
  haul_sge piece = {.addr = info->addr + offset, .len = len, .lkey = info->lkey};
  return piece;
}

static haul_send_wr request(uint32_t opcode, const haul_sge *pieces, uint32_t count) {
  haul_send_wr request = {.wr_id = opcode,
                          .opcode = opcode,
                          .flags = HAUL_SEND_SIGNALED,
                          .sges = pieces,
                          .num_sge = count,
                          .remote_addr = far_info.addr,
                          .rkey = far_info.rkey};
  return request;
}

/* Posts one request and waits for its completion. */
static haul_wc carry_out(haul_send_wr request, uint32_t opcode) {
  must(pair.context, haul_post_send(pair.near.qp, &request, 1, NULL));
  haul_wc wc = next_success(pair.context, pair.near.cq);
  if (wc.wr_id != request.wr_id || wc.opcode != opcode) {
    fail("completion of %llu, opcode %u instead of %u", (unsigned long long)wc.wr_id, wc.opcode, opcode);
  }
  return wc;
}

static haul_wc received(uint32_t opcode, uint32_t len) {
  haul_wc wc = next_success(pair.context, pair.far.cq);
  if (wc.opcode != opcode || wc.byte_len != len) {
    fail("received opcode %u with %u bytes instead of %u with %u", wc.opcode, wc.byte_len, opcode, len);
  }
  return wc;
}

static void expect_words(const uint64_t *words, size_t count, uint64_t first) {
  for (size_t i = 0; i < count; i++) {
    if (words[i] != first + i) {
      fail("word %zu is %llu instead of %llu", i, (unsigned long long)words[i], (unsigned long long)(first + i));
    }
  }
}

/* Waits until all that was sent before is placed at the peer: the answer of a read follows it. */
static void settle(void) {
  haul_sge sink = piece(&near_info, sizeof near_words - 8, 8);
  haul_send_wr read = request(HAUL_WR_RDMA_READ, &sink, 1);
  read.remote_addr += sizeof far_words - 8;
  carry_out(read, HAUL_WC_RDMA_READ);
}

static void sends(void) {
  haul_sge place = piece(&far_info, 0, 64);
  haul_sge pieces[] = {piece(&near_info, 0, 24), piece(&near_info, 32, 16)};
  near_words[0] = 1, near_words[1] = 2, near_words[2] = 3, near_words[4] = 4, near_words[5] = 5;
  post_recv(pair.context, pair.far.qp, 1, &place);
  carry_out(request(HAUL_WR_SEND, pieces, 2), HAUL_WC_SEND);
  received(HAUL_WC_RECV, 40);
  expect_words(far_words, 5, 1);

  /* Inline data may lie anywhere, also in several places, and may change as soon as it is
   * posted. */
  uint64_t numbers[] = {11, 12, 13};
  haul_sge anywhere[] = {{.addr = (uintptr_t)&numbers[0], .len = 8}, {.addr = (uintptr_t)&numbers[1], .len = 16}};
  post_recv(pair.context, pair.far.qp, 2, &place);
  haul_send_wr inlined = request(HAUL_WR_SEND, anywhere, 2);
  inlined.flags |= HAUL_SEND_INLINE | HAUL_SEND_SOLICITED;
  must(pair.context, haul_post_send(pair.near.qp, &inlined, 1, NULL));
  memset(numbers, 0, sizeof numbers);
  next_success(pair.context, pair.near.cq);
  received(HAUL_WC_RECV, 24);
  expect_words(far_words, 3, 11);
}

static void immediates(void) {
  haul_sge place = piece(&far_info, 0, 64);
  post_recv(pair.context, pair.far.qp, 3, &place);
  haul_sge from = piece(&near_info, 0, 16);
  near_words[0] = 15, near_words[1] = 16;
  haul_send_wr send = request(HAUL_WR_SEND_WITH_IMM, &from, 1);
  send.data = 0x12345678;
  carry_out(send, HAUL_WC_SEND);
  haul_wc wc = received(HAUL_WC_RECV, 16);
  if (!(wc.flags & HAUL_WC_WITH_IMM) || wc.data != 0x12345678) {
    fail("immediate data of a Send: flags %u, data %x", wc.flags, wc.data);
  }
  expect_words(far_words, 2, 15);

  near_words[0] = 21, near_words[1] = 22;
  post_recv(pair.context, pair.far.qp, 4, &place);
  haul_send_wr write = request(HAUL_WR_RDMA_WRITE_WITH_IMM, &from, 1);
  write.data = 99;
  carry_out(write, HAUL_WC_RDMA_WRITE);
  wc = next_success(pair.context, pair.far.cq);
  if (wc.opcode != HAUL_WC_RECV_RDMA_WITH_IMM || !(wc.flags & HAUL_WC_WITH_IMM) || wc.data != 99) {
    fail("immediate data of a Write: opcode %u, flags %u, data %u", wc.opcode, wc.flags, wc.data);
  }
  expect_words(far_words, 2, 21);
}

static void one_sided(void) {
  haul_sge from = piece(&near_info, 0, 64);
  for (uint64_t i = 0; i < 8; i++) {
    near_words[i] = 31 + i;
  }
  carry_out(request(HAUL_WR_RDMA_WRITE, &from, 1), HAUL_WC_RDMA_WRITE);
  haul_sge to = piece(&near_info, 64, 64);
  haul_send_wr read = request(HAUL_WR_RDMA_READ, &to, 1);
  read.flags |= HAUL_SEND_FENCE;
  if (carry_out(read, HAUL_WC_RDMA_READ).byte_len != 64) {
    fail("a read of 64 bytes");
  }
  expect_words(near_words + 8, 8, 31);

  haul_sge was = piece(&near_info, 128, 8);
  far_words[0] = 41;
  haul_send_wr add = request(HAUL_WR_FETCH_ADD, &was, 1);
  add.compare_add = 2;
  carry_out(add, HAUL_WC_FETCH_ADD);
  expect_words(near_words + 16, 1, 41);
  haul_send_wr swap = request(HAUL_WR_COMPARE_SWAP, &was, 1);
  swap.compare_add = 43;
  swap.swap = 77;
  carry_out(swap, HAUL_WC_COMPARE_SWAP);
  expect_words(near_words + 16, 1, 43);
  expect_words(far_words, 1, 77);
}

/* Unsignalled requests in one batch: only the last one reports, and what it reports is true of
 * all. */
static void batches(void) {
  haul_sge pieces[40];
  haul_send_wr batch[40];
  size_t posted;
  for (uint32_t i = 0; i < 40; i++) {
    near_words[i] = 100 + i;
    pieces[i] = piece(&near_info, i * 8, 8);
    batch[i] = request(HAUL_WR_RDMA_WRITE, &pieces[i], 1);
    batch[i].wr_id = i;
    batch[i].remote_addr += i * 8;
    batch[i].flags = i == 39 ? HAUL_SEND_SIGNALED : 0;
  }
  must(pair.context, haul_post_send(pair.near.qp, batch, 40, &posted));
  if (posted != 40 || next_success(pair.context, pair.near.cq).wr_id != 39) {
    fail("a batch of 40: %zu posted", posted);
  }
  settle();
  expect_words(far_words, 40, 100);
}

/* The peer takes a region away with the message that it no longer needs it. */
static void invalidate(void) {
  haul_mr *lent;
  haul_sge place = piece(&far_info, 0, 64);
  uint32_t access = HAUL_ACCESS_LOCAL_WRITE | HAUL_ACCESS_REMOTE_WRITE | HAUL_ACCESS_REMOTE_INVALIDATE;
  must(pair.context, haul_mr_alloc(pair.pd, 4096, access | HAUL_ACCESS_ZERO_BASED, &lent));
  haul_mr_info info = mr_info(pair.context, lent);
  if (info.addr != 0 || info.len != 4096 || info.ptr == NULL) {
    fail("a zero-based region begins at %llu", (unsigned long long)info.addr);
  }
  post_recv(pair.context, pair.far.qp, 5, &place);
  haul_send_wr send = request(HAUL_WR_SEND_WITH_INV, NULL, 0);
  send.data = info.rkey;
  carry_out(send, HAUL_WC_SEND);
  haul_wc wc = received(HAUL_WC_RECV, 0);
  if (!(wc.flags & HAUL_WC_WITH_INV) || wc.data != info.rkey) {
    fail("the region was not ended: flags %u, data %x", wc.flags, wc.data);
  }
  must(pair.context, haul_mr_dereg(lent));
}

/* This end takes a region back, behind what was sent from it. */
static void invalidate_locally(void) {
  haul_mr *lent;
  must(pair.context, haul_mr_reg(pair.pd, near_words, sizeof near_words, HAUL_ACCESS_LOCAL_WRITE, &lent));
  haul_mr_info info = mr_info(pair.context, lent);
  haul_sge from = piece(&info, 0, 16);
  near_words[0] = 51, near_words[1] = 52;
  carry_out(request(HAUL_WR_RDMA_WRITE, &from, 1), HAUL_WC_RDMA_WRITE);
  haul_send_wr take_back = request(HAUL_WR_LOCAL_INV, NULL, 0);
  take_back.data = info.lkey;
  carry_out(take_back, HAUL_WC_LOCAL_INV);
  settle();
  expect_words(far_words, 2, 51);
  must(pair.context, haul_mr_dereg(lent));
}

int main(void) {
  make_pair(&pair);
  must(pair.context, haul_mr_reg(pair.pd, near_words, sizeof near_words, HAUL_ACCESS_LOCAL_WRITE, &near_mr));
  uint32_t access = HAUL_ACCESS_LOCAL_WRITE | HAUL_ACCESS_REMOTE_WRITE | HAUL_ACCESS_REMOTE_READ | HAUL_ACCESS_REMOTE_ATOMIC;
  must(pair.context, haul_mr_reg_iova(pair.pd, far_words, sizeof far_words, 0x10000, access, &far_mr));
  near_info = mr_info(pair.context, near_mr);
  far_info = mr_info(pair.context, far_mr);
  if (far_info.addr != 0x10000 || far_info.ptr != far_words || near_info.addr != (uintptr_t)near_words) {
    fail("regions have other addresses than they were given");
  }
  make_and_join(&pair);
  sends();
  immediates();
  one_sided();
  batches();
  invalidate();
  invalidate_locally();
  printf("every operation did what it should\n");
  must(pair.context, haul_mr_dereg(near_mr));
  must(pair.context, haul_mr_dereg(far_mr));
  end_pair(&pair);
  return 0;
}
