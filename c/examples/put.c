/*
 * put: bulk data into the memory of a peer, by RDMA Writes.
 *
 *   put                  offers memory on loopback, and checks what was put there
 *   put HOST PORT [MIB]  fills as much of the peer's memory
 *
 * The peer's program is not asked for a single byte: it learns by one message in the end that all
 * is there. The order of a connection sees to that.
 */
#include "example.h"

#define OFFERED ((size_t)64 << 20)
#define CHUNK ((uint32_t)1 << 20)
#define DEPTH 16

static haul_qp *make_qp(haul_context *context, haul_pd *pd, haul_cq *cq) {
  haul_qp *qp;
  haul_qp_init init = HAUL_QP_INIT;
  init.send_cq = init.recv_cq = cq;
  init.max_send_wr = DEPTH + 1;
  init.max_inline = 8;
  must(context, haul_qp_create(pd, &init, &qp));
  return qp;
}

static void serve(void) {
  haul_context *context = open_device();
  haul_cm_channel *events;
  haul_pd *pd;
  haul_cq *cq;
  haul_mr *target, *message;
  struct sockaddr_in address;
  uint64_t put = 0;
  must(context, haul_cm_channel_create(context, &events));
  must(context, haul_pd_create(context, &pd));
  must(context, haul_cq_create(context, 64, NULL, 0, &cq));
  must(context, haul_mr_alloc(pd, OFFERED, HAUL_ACCESS_LOCAL_WRITE | HAUL_ACCESS_REMOTE_WRITE | HAUL_ACCESS_ZERO_BASED, &target));
  must(context, haul_mr_reg(pd, &put, sizeof put, HAUL_ACCESS_LOCAL_WRITE, &message));
  haul_listener *listener = listen_somewhere(context, events, &address);
  haul_cm_event request = expect_event(context, events, HAUL_CM_CONNECT_REQUEST);

  haul_qp *qp = make_qp(context, pd, cq);
  haul_mr_info info = mr_info(context, message);
  haul_sge place = {.addr = info.addr, .len = sizeof put, .lkey = info.lkey};
  post_recv(context, qp, 1, &place);
  info = mr_info(context, target);
  struct where announced = where(&info);
  haul_conn_param param = HAUL_CONN_PARAM_INIT;
  param.private_data = &announced;
  param.private_data_len = sizeof announced;
  must(context, haul_accept(request.request, qp, &param));
  expect_event(context, events, HAUL_CM_ESTABLISHED);

  next_success(context, cq);
  must(context, haul_mr_dereg(message));
  if (put > OFFERED) {
    fail("the peer reports more bytes than there is room for");
  }
  pattern_check(info.ptr, put);
  printf("checked %llu bytes\n", (unsigned long long)put);
  haul_send_wr thanks = {.wr_id = 2, .opcode = HAUL_WR_SEND, .flags = HAUL_SEND_SIGNALED};
  must(context, haul_post_send(qp, &thanks, 1, NULL));
  next_success(context, cq);
  expect_event(context, events, HAUL_CM_DISCONNECTED);

  haul_listener_destroy(listener);
  haul_qp_destroy(qp);
  must(context, haul_mr_dereg(target));
  haul_cq_destroy(cq);
  haul_pd_destroy(pd);
  haul_cm_channel_destroy(events);
  haul_close(context);
}

/* Keeps DEPTH writes in flight, posted in batches. */
static void write_all(haul_context *context, haul_qp *qp, haul_cq *cq, const haul_mr_info *from, uint64_t addr, uint32_t rkey) {
  uint64_t at = 0, in_flight = 0;
  while (at < from->len || in_flight > 0) {
    haul_send_wr batch[DEPTH];
    haul_sge pieces[DEPTH];
    size_t count = 0;
    for (; at < from->len && in_flight < DEPTH; at += pieces[count++].len, in_flight++) {
      uint64_t left = from->len - at;
      pieces[count] = (haul_sge){.addr = from->addr + at, .len = left < CHUNK ? (uint32_t)left : CHUNK, .lkey = from->lkey};
      batch[count] = (haul_send_wr){.wr_id = at,
                                    .opcode = HAUL_WR_RDMA_WRITE,
                                    .flags = HAUL_SEND_SIGNALED,
                                    .sges = &pieces[count],
                                    .num_sge = 1,
                                    .remote_addr = addr + at,
                                    .rkey = rkey};
    }
    must(context, haul_post_send(qp, batch, count, NULL));
    haul_wc done[DEPTH];
    int found = must(context, haul_cq_wait(cq, PATIENCE_NS, done, DEPTH));
    for (int i = 0; i < found; i++, in_flight--) {
      if (done[i].status != HAUL_WC_SUCCESS) {
        fail("write at %llu: %s", (unsigned long long)done[i].wr_id, haul_wc_status_str(done[i].status));
      }
    }
  }
}

static void put(const char *host, const char *port, size_t bytes) {
  haul_context *context = open_device();
  haul_cm_channel *events;
  haul_pd *pd;
  haul_cq *cq;
  haul_mr *source;
  uint64_t addr, len;
  uint32_t rkey;
  must(context, haul_cm_channel_create(context, &events));
  must(context, haul_pd_create(context, &pd));
  must(context, haul_cq_create(context, 64, NULL, 0, &cq));
  must(context, haul_mr_alloc(pd, bytes, 0, &source));
  haul_mr_info info = mr_info(context, source);
  pattern_fill(info.ptr, bytes);
  haul_qp *qp = make_qp(context, pd, cq);
  haul_recv_wr receive = {.wr_id = ~(uint64_t)0};
  must(context, haul_post_recv(qp, &receive, 1, NULL));
  connect_to(context, qp, host, port, NULL, events);
  haul_cm_event established = expect_event(context, events, HAUL_CM_ESTABLISHED);
  whereabouts(&established, &addr, &len, &rkey);
  if (len < bytes) {
    fail("the peer offers no more than %llu bytes", (unsigned long long)len);
  }

  int64_t start = now_ns();
  write_all(context, qp, cq, &info, addr, rkey);
  uint64_t put = bytes;
  haul_sge piece = {.addr = (uintptr_t)&put, .len = sizeof put};
  haul_send_wr notice = {.wr_id = 1, .opcode = HAUL_WR_SEND, .flags = HAUL_SEND_SIGNALED | HAUL_SEND_INLINE, .sges = &piece, .num_sge = 1};
  must(context, haul_post_send(qp, &notice, 1, NULL));
  /* The send and the answer complete in either order. */
  uint32_t first = next_success(context, cq).opcode, second = next_success(context, cq).opcode;
  if (first != HAUL_WC_RECV && second != HAUL_WC_RECV) {
    fail("the peer did not confirm");
  }
  double seconds = (double)(now_ns() - start) / 1e9;
  printf("put %zu bytes, checked by the peer: %.2f Gb/s\n", bytes, (double)bytes * 8e-9 / seconds);
  must(context, haul_disconnect(qp));
  expect_event(context, events, HAUL_CM_DISCONNECTED);

  haul_qp_destroy(qp);
  must(context, haul_mr_dereg(source));
  haul_cq_destroy(cq);
  haul_pd_destroy(pd);
  haul_cm_channel_destroy(events);
  haul_close(context);
}

int main(int count, char **arguments) {
  size_t bytes = (count > 3 ? number(arguments[3]) : 16) << 20;
  if (count == 1) {
    serve();
  } else if (count > 2 && bytes > 0 && bytes <= OFFERED) {
    put(arguments[1], arguments[2], bytes);
  } else {
    fail("usage: put [HOST PORT [MIB]], 64 MiB at most");
  }
  return 0;
}
