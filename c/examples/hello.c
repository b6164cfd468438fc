/* Writes into the memory of a peer; an empty Read behind it shows when that is done. Both ends
 * are in this process: 0 connects to 1. */
#include <haul.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>

static haul_context *context;

static void must(int result) { /* a negative result is an error; the library has a line about it */
  char text[512];
  if (result < 0) {
    size_t len = haul_last_error(context, text, sizeof text);
    fprintf(stderr, "%s\n", len > 0 ? text : haul_strerror(result));
    exit(1);
  }
}

int main(void) {
  char memory[2][64] = {"hello, region", ""};
  haul_pd *pd;
  haul_mr *mr;
  haul_mr_info info = HAUL_MR_INFO_INIT;
  haul_cq *cq[2];
  haul_qp *qp[2];
  haul_cm_channel *events[2];
  must(haul_open("soft", NULL, &context)); /* ibv_open_device; soft-tcp, the provider's first */
  must(haul_pd_create(context, &pd)); /* ibv_alloc_pd */
  const uint32_t access = HAUL_ACCESS_LOCAL_WRITE | HAUL_ACCESS_REMOTE_WRITE;
  must(haul_mr_reg(pd, memory, sizeof memory, access, &mr)); /* ibv_reg_mr */
  must(haul_mr_query(mr, &info)); /* keys and address, for the peer */
  for (int end = 0; end < 2; end++) {
    haul_qp_init init = HAUL_QP_INIT;
    must(haul_cq_create(context, 16, NULL, 0, &cq[end])); /* ibv_create_cq */
    must(haul_cm_channel_create(context, &events[end])); /* rdma_create_event_channel */
    init.send_cq = init.recv_cq = cq[end];
    must(haul_qp_create(pd, &init, &qp[end])); /* ibv_create_qp */
  }

  haul_listener *listener;
  haul_cm_event event = HAUL_CM_EVENT_INIT;
  struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
  socklen_t len = sizeof address;
  must(haul_listen(context, (struct sockaddr *)&address, len, events[1], 8, &listener));
  must(haul_listener_address(listener, (struct sockaddr *)&address, &len));
  must(haul_connect(qp[0], (struct sockaddr *)&address, len, NULL, events[0])); /* rdma_connect */
  must(haul_cm_channel_wait(events[1], -1, &event)); /* HAUL_CM_CONNECT_REQUEST */
  must(haul_accept(event.request, qp[1], NULL)); /* rdma_accept */
  must(haul_cm_channel_wait(events[0], -1, &event)); /* HAUL_CM_ESTABLISHED */

  haul_sge piece = {.addr = info.addr, .len = sizeof memory[0], .lkey = info.lkey};
  haul_send_wr write = {.wr_id = 1, .opcode = HAUL_WR_RDMA_WRITE, .sges = &piece, .num_sge = 1,
                        .remote_addr = info.addr + sizeof memory[0], .rkey = info.rkey};
  haul_send_wr read = {.wr_id = 2, .opcode = HAUL_WR_RDMA_READ, .flags = HAUL_SEND_SIGNALED,
                       .rkey = info.rkey};
  haul_wc wc;
  must(haul_post_send(qp[0], &write, 1, NULL)); /* ibv_post_send */
  must(haul_post_send(qp[0], &read, 1, NULL)); /* completes after the Write is placed */
  must(haul_cq_wait(cq[0], -1, &wc, 1)); /* ibv_poll_cq, then sleeps */
  printf("%s: %s\n", haul_wc_status_str(wc.status), memory[1]);

  for (int end = 0; end < 2; end++) { /* objects may be destroyed in any order */
    haul_qp_destroy(qp[end]), haul_cq_destroy(cq[end]), haul_cm_channel_destroy(events[end]);
  }
  haul_mr_dereg(mr), haul_listener_destroy(listener), haul_pd_destroy(pd), haul_close(context);
  return wc.status != HAUL_WC_SUCCESS;
}
