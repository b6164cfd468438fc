/*
 * ud: unreliable datagrams. Messages that carry their sender's address, and Write-Record:
 * one-sided, without a receive request, after which the target knows which bytes are valid. What is
 * lost is retransmitted by this program: the service does not.
 */
#include "datagram.h"

#define BYTES 32768
#define ATTEMPTS 60
#define ATTEMPT_NS 1000000000

/* The next completion of this opcode: 1, or 0 if none comes for a while. */
static int await(haul_context *context, haul_cq *cq, uint32_t opcode, haul_wc *wc) {
  while (must(context, haul_cq_wait(cq, ATTEMPT_NS, wc, 1)) == 1) {
    if (wc->status != HAUL_WC_SUCCESS) {
      fail("work request %llu: %s", (unsigned long long)wc->wr_id, haul_wc_status_str(wc->status));
    }
    if (wc->opcode == opcode) {
      return 1;
    }
  }
  return 0;
}

/* Asks until an answer comes. The far end answers to the peer that its completion names. */
static void ask(haul_context *context, struct end *near, struct end *far, haul_mr *near_mr, haul_mr *far_mr) {
  haul_mr_info here = mr_info(context, near_mr), there = mr_info(context, far_mr);
  haul_sge near_piece = {.addr = here.addr, .len = 64, .lkey = here.lkey};
  haul_sge far_piece = {.addr = there.addr, .len = 64, .lkey = there.lkey};
  haul_wc wc;
  post_recv(context, near->qp, 1, &near_piece);
  for (int attempt = 0; attempt < ATTEMPTS; attempt++) {
    post_recv(context, far->qp, 2, &far_piece);
    say_to(context, near, &far->own, "who is there?", 13);
    if (!await(context, far->cq, HAUL_WC_RECV, &wc)) {
      continue;
    }
    haul_peer asker;
    if (wc.byte_len != 13 || memcmp(there.ptr, "who is there?", 13) != 0) {
      fail("another question");
    }
    if (must(context, haul_wc_peer(&wc, &asker)) != 1 || !same_peer(&asker, &near->own)) {
      fail("the question does not come from whom it should");
    }
    say_to(context, far, &asker, "it is me", 8);
    if (await(context, near->cq, HAUL_WC_RECV, &wc)) {
      if (wc.byte_len != 8 || memcmp(here.ptr, "it is me", 8) != 0) {
        fail("another answer");
      }
      return;
    }
  }
  fail("no answer in %d attempts", ATTEMPTS);
}

/* What a record calls valid must be what was written. */
static void check_record(const haul_record *record, const haul_range *ranges, const unsigned char *sent, const unsigned char *there) {
  uint32_t valid = 0;
  if (record->ranges_len > record->ranges_room || record->len != BYTES) {
    fail("a record of another message");
  }
  for (uint32_t i = 0; i < record->ranges_len; i++) {
    haul_range range = ranges[i];
    if (range.start >= range.end || range.end > BYTES || memcmp(sent + range.start, there + range.start, range.end - range.start) != 0) {
      fail("bytes %u to %u are not what was written", range.start, range.end);
    }
    valid += range.end - range.start;
  }
  if (valid != record->valid) {
    fail("%u bytes of ranges, and %u are reported as valid", valid, record->valid);
  }
}

/* Writes until a record reports that everything has arrived. */
static void write_and_record(haul_context *context, struct end *near, struct end *far, haul_mr *near_mr, haul_mr *far_mr) {
  haul_mr_info here = mr_info(context, near_mr), there = mr_info(context, far_mr);
  haul_range ranges[HAUL_RECORD_RANGES_MAX];
  pattern_fill(here.ptr, BYTES);
  for (int attempt = 0; attempt < ATTEMPTS; attempt++) {
    haul_sge piece = {.addr = here.addr, .len = BYTES, .lkey = here.lkey};
    haul_send_wr request = {.wr_id = 3, .opcode = HAUL_WR_WRITE_RECORD_WITH_IMM, .flags = HAUL_SEND_SIGNALED, .sges = &piece,
                            .num_sge = 1, .data = 77, .remote_addr = there.addr, .rkey = there.rkey};
    haul_wc wc;
    haul_record record = {.ranges = ranges, .ranges_room = HAUL_RECORD_RANGES_MAX};
    post_to(context, near, &far->own, &request);
    if (!await(context, near->cq, HAUL_WC_WRITE_RECORD, &wc)) {
      fail("a datagram is not handed to the network");
    }
    if (!await(context, far->cq, HAUL_WC_RECV_WRITE_RECORD, &wc)) {
      continue;
    }
    if (must(context, haul_qp_take_record(far->qp, wc.wr_id, &record)) != 1) {
      fail("a completion without a record");
    }
    if (must(context, haul_qp_take_record(far->qp, wc.wr_id, &record)) != 0) {
      fail("a record that can be taken twice");
    }
    if (record.addr != there.addr || record.rkey != there.rkey || !same_peer(&record.source, &near->own)) {
      fail("a record of something else");
    }
    check_record(&record, ranges, here.ptr, there.ptr);
    if ((record.flags & HAUL_RECORD_WITH_IMM) != 0 && record.imm != 77) {
      fail("other immediate data");
    }
    printf("message %u: %u of %u bytes are valid\n", record.message, record.valid, record.len);
    if (record.status == HAUL_RECORD_FULL) {
      return;
    }
  }
  fail("no full record in %d attempts", ATTEMPTS);
}

int main(void) {
  haul_context *context = open_datagram_device(HAUL_CAP_UD | HAUL_CAP_WRITE_RECORD);
  haul_pd *pd;
  haul_mr *near_mr, *far_mr;
  struct end near, far;
  must(context, haul_pd_create(context, &pd));
  make_end(context, pd, HAUL_QPT_UD, &near);
  make_end(context, pd, HAUL_QPT_UD, &far);

  /* The far region is written to by the near queue pair, and by nobody else. */
  must(context, haul_mr_alloc(pd, BYTES, HAUL_ACCESS_LOCAL_WRITE, &near_mr));
  haul_mr_init init = HAUL_MR_INIT;
  init.access = HAUL_ACCESS_LOCAL_WRITE | HAUL_ACCESS_REMOTE_WRITE;
  init.len = BYTES;
  init.sources = HAUL_SOURCES_PEERS;
  init.peers = &near.own;
  init.peer_count = 1;
  must(context, haul_mr_create(pd, &init, &far_mr));

  ask(context, &near, &far, near_mr, far_mr);
  write_and_record(context, &near, &far, near_mr, far_mr);

  haul_datagram_statistics counted = HAUL_DATAGRAM_STATISTICS_INIT;
  must(context, haul_qp_datagram_statistics(far.qp, &counted));
  if (counted.received == 0 || counted.bad_checksum != 0 || counted.malformed != 0) {
    fail("statistics that cannot be");
  }
  printf("a question, an answer and %d bytes in %llu datagrams\n", BYTES, (unsigned long long)counted.received);

  must(context, haul_mr_dereg(near_mr));
  must(context, haul_mr_dereg(far_mr));
  end_end(&near);
  end_end(&far);
  haul_pd_destroy(pd);
  haul_close(context);
  return 0;
}
