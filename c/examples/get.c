/*
 * get: bulk data out of the memory of a peer, by RDMA Reads.
 *
 *   get                  offers data on loopback
 *   get HOST PORT [MIB]  fetches as much of it into memory that malloc has made, and checks it
 *
 * The peer's processor does not see a single read. How many reads are in flight at once was agreed
 * when the connection was made.
 */
#include "example.h"

#define OFFERED ((size_t)64 << 20)
#define CHUNK ((uint32_t)1 << 20)

static haul_qp *make_qp(haul_context *context, haul_pd *pd, haul_cq *cq) {
  haul_qp *qp;
  haul_qp_init init = HAUL_QP_INIT;
  init.send_cq = init.recv_cq = cq;
  must(context, haul_qp_create(pd, &init, &qp));
  return qp;
}

static void serve(void) {
  haul_context *context = open_device();
  haul_cm_channel *events;
  haul_pd *pd;
  haul_cq *cq;
  haul_mr *source;
  struct sockaddr_in address;
  must(context, haul_cm_channel_create(context, &events));
  must(context, haul_pd_create(context, &pd));
  must(context, haul_cq_create(context, 64, NULL, 0, &cq));
  must(context, haul_mr_alloc(pd, OFFERED, HAUL_ACCESS_REMOTE_READ | HAUL_ACCESS_ZERO_BASED, &source));
  haul_mr_info info = mr_info(context, source);
  pattern_fill(info.ptr, info.len);
  haul_listener *listener = listen_somewhere(context, events, &address);
  haul_cm_event request = expect_event(context, events, HAUL_CM_CONNECT_REQUEST);

  haul_qp *qp = make_qp(context, pd, cq);
  struct where announced = where(&info);
  haul_conn_param param = HAUL_CONN_PARAM_INIT;
  param.private_data = &announced;
  param.private_data_len = sizeof announced;
  param.responder_resources = request.initiator_depth;
  must(context, haul_accept(request.request, qp, &param));
  expect_event(context, events, HAUL_CM_ESTABLISHED);
  haul_cm_event over = expect_event(context, events, HAUL_CM_DISCONNECTED);
  if (over.blame != HAUL_BLAME_NONE) {
    fail("the connection did not end in order: %s", over.reason);
  }

  haul_listener_destroy(listener);
  haul_qp_destroy(qp);
  must(context, haul_mr_dereg(source));
  haul_cq_destroy(cq);
  haul_pd_destroy(pd);
  haul_cm_channel_destroy(events);
  haul_close(context);
}

/* Reads are cheap to post: the queue pair holds back those that are beyond what was agreed. */
static void read_all(haul_context *context, haul_qp *qp, haul_cq *cq, const haul_mr_info *to, uint64_t addr, uint32_t rkey) {
  uint64_t at = 0, done = 0;
  while (done < to->len) {
    while (at < to->len) {
      uint64_t left = to->len - at;
      haul_sge piece = {.addr = to->addr + at, .len = left < CHUNK ? (uint32_t)left : CHUNK, .lkey = to->lkey};
      haul_send_wr request = {.wr_id = piece.len,
                              .opcode = HAUL_WR_RDMA_READ,
                              .flags = HAUL_SEND_SIGNALED,
                              .sges = &piece,
                              .num_sge = 1,
                              .remote_addr = addr + at,
                              .rkey = rkey};
      int result = haul_post_send(qp, &request, 1, NULL);
      if (result == HAUL_ERR_FULL) {
        break;
      }
      must(context, result);
      at += piece.len;
    }
    haul_wc wc = next_success(context, cq);
    if (wc.opcode != HAUL_WC_RDMA_READ || wc.byte_len != wc.wr_id) {
      fail("a read of %llu bytes brought %u", (unsigned long long)wc.wr_id, wc.byte_len);
    }
    done += wc.byte_len;
  }
}

static void get(const char *host, const char *port, size_t bytes) {
  haul_context *context = open_device();
  haul_cm_channel *events;
  haul_pd *pd;
  haul_cq *cq;
  haul_mr *target;
  uint64_t addr, len;
  uint32_t rkey;
  must(context, haul_cm_channel_create(context, &events));
  must(context, haul_pd_create(context, &pd));
  must(context, haul_cq_create(context, 256, NULL, 0, &cq));
  void *memory = calloc(1, bytes);
  if (memory == NULL) {
    fail("no memory");
  }
  must(context, haul_mr_reg(pd, memory, bytes, HAUL_ACCESS_LOCAL_WRITE, &target));
  haul_mr_info info = mr_info(context, target);
  if (info.ptr != memory || info.addr != (uintptr_t)memory || info.len != bytes) {
    fail("the region is not the memory that was registered");
  }
  haul_qp *qp = make_qp(context, pd, cq);
  connect_to(context, qp, host, port, NULL, events);
  haul_cm_event established = expect_event(context, events, HAUL_CM_ESTABLISHED);
  whereabouts(&established, &addr, &len, &rkey);
  if (len < bytes) {
    fail("the peer offers no more than %llu bytes", (unsigned long long)len);
  }

  int64_t start = now_ns();
  read_all(context, qp, cq, &info, addr, rkey);
  double seconds = (double)(now_ns() - start) / 1e9;
  must(context, haul_disconnect(qp));
  expect_event(context, events, HAUL_CM_DISCONNECTED);
  must(context, haul_mr_dereg(target));
  pattern_check(memory, bytes);
  printf("got %zu bytes, checked: %.2f Gb/s with %u reads at once\n", bytes, (double)bytes * 8e-9 / seconds,
         (unsigned)established.initiator_depth);

  free(memory);
  haul_qp_destroy(qp);
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
    get(arguments[1], arguments[2], bytes);
  } else {
    fail("usage: get [HOST PORT [MIB]], 64 MiB at most");
  }
  return 0;
}
