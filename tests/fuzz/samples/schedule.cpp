#include "parallel/pipeline/schedule_text.h"
#include "tests/fuzz/samples.h"

namespace sluice::fuzz {

Samples schedule_samples() {
  std::string rows;
  for (int rank = 0; rank <= max_ranks; ++rank)
    rows += std::to_string(rank) + "F0\n";
  const std::string not_valid = "the schedule is not valid";
  return {
      {"accepted-gpipe", to_csv(gpipe(3, 4)), ""},
      {"accepted-lowered", to_csv(lower(one_forward_one_backward(3, 4))), ""},
      {"accepted-zb-h1", to_csv(lower(zero_bubble_h1(3, 4))), ""},
      {"accepted-interleaved", to_csv(interleaved(2, 2, 4)), ""},
      {"accepted-crlf-and-spaces", " 0F0 ,\t0B0\t\r\n1F0, 1B0 \r\n", ""},
      {"accepted-comments", "# by hand\n0F0,0B0\n # the last\n1F0,1B0\n\n", ""},
      {"accepted-empty-cells", "0F0,,0B0\n,1F0,1B0,\n", ""},
      {"accepted-byte-order-mark",
       "\xEF\xBB\xBF"
       "0F0,0B0\n",
       ""},
      {"empty", "", "no rows"},
      {"only-comments", "# nothing\n", "no rows"},
      {"only-empty-cells", ",\n", "no actions"},
      {"blank-line-inside", "0F0\n\n1F0\n", "line 2: blank"},
      {"no-stage", "F0\n", "is not an action"},
      {"no-micro-batch", "0F\n", "is not an action"},
      {"unknown-action", "0X0\n", "is not an action"},
      {"sign", "-1F0\n", "is not an action"},
      {"leading-zero", "00F0\n", "is not an action"},
      {"text-after-action", "0F0x\n", "is not an action"},
      {"endless-cell", std::string(100'000, '7'), "..."},
      {"bytes-of-no-text", std::string("\x01\xFF\x7F\0F", 5), "?"},
      {"stage-over-limit", "65536F0\n", "a stage over 65535"},
      {"stage-over-32-bits", "4294967296F0\n", "a stage over 65535"},
      {"micro-batch-over-limit", "0F65536\n", "a micro-batch over 65535"},
      {"micro-batch-over-64-bits", "0F18446744073709551616\n", "a micro-batch over 65535"},
      {"too-many-ranks", rows, "more than 4096 ranks"},
      {"largest-numbers", "65535F65535\n", not_valid},
      {"backward-missing", "0F0\n", not_valid},
      {"backward-before-forward", "0B0,0F0\n", not_valid},
      {"forward-twice", "0F0,0F0,0B0,0B0\n", not_valid},
      {"stage-on-two-ranks", "0F0,0B0\n0F0,0B0\n", not_valid},
      {"stage-missing", "0F0,0B0\n2F0,2B0\n", not_valid},
      {"rank-without-stage", "0F0,0B0\n,\n", not_valid},
      {"descending-gradients", "0F0,0F1,0B1,0B0\n", not_valid},
      {"message-to-nobody", "0F0,0SEND_F0,0B0\n", not_valid},
      {"receive-missing", "0F0,0SEND_F0,0RECV_B0,0B0\n1F0,1B0,1SEND_B0\n", not_valid},
      {"send-missing", "0F0,0RECV_B0,0B0\n1RECV_F0,1F0,1B0,1SEND_B0\n", not_valid},
      {"send-before-computing", "0SEND_F0,0F0,0RECV_B0,0B0\n1RECV_F0,1F0,1B0,1SEND_B0\n",
       not_valid},
      {"receive-too-late", "0F0,0SEND_F0,0RECV_B0,0B0\n1F0,1RECV_F0,1B0,1SEND_B0\n", not_valid},
      {"stage-before-the-one-it-needs", "1F0,0F0,1B0,0B0\n", not_valid},
      {"messages-in-another-order",
       "0F0,0F1,0RECV_B0,0RECV_B1,0SEND_F1,0SEND_F0,0B0,0B1\n"
       "1RECV_F0,1RECV_F1,1F0,1F1,1B0,1SEND_B0,1B1,1SEND_B1\n",
       not_valid},
      {"more-than-the-count", "0F0,0B0,0F0\n", not_valid},
      {"deadlock", "0F0,0RECV_B0,0B0,0SEND_F0\n1RECV_F0,1F0,1B0,1SEND_B0\n", not_valid},
  };
}

}  // namespace sluice::fuzz
