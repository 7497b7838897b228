#include "tests/fuzz/samples.h"

namespace sluice::fuzz {

Samples lists_samples() {
  const std::string unseen = "a\xC2\x9B\xE2\x80\xAE\xE2\x80\x8B";
  return {
      {"accepted-place", "rresident", ""},
      {"accepted-modes", "rauto:block*2,auto:gelu+ln*3,auto:none", ""},
      {"accepted-same-twice", "rresident:block*2,resident:block*3,resident:block", ""},
      {"accepted-all", "rresident:none*4,offload-all:none*8,offload-embeddings", ""},
      {"accepted-empty", "r", ""},
      {"place-comma", "r,", "an item is empty"},
      {"place-comma-at-end", "rresident*2,", "an item is empty"},
      {"place-unknown", "rgpu", "is no PLACE"},
      {"place-unseen", "r" + unseen, "is no PLACE"},
      {"place-endless", "r" + std::string(100'000, 'x'), "is no PLACE"},
      {"place-not-utf8", "rresident*" + std::string(1000, '\xFF') + ",", "where 12 are left"},
      {"mode-unknown", "rauto:blocks", "is no RECOMPUTE"},
      {"mode-unseen", "rauto:" + unseen, "is no RECOMPUTE"},
      {"fault-not-utf8", "i" + std::string(1000, '\xFF'), "is unknown"},
      {"place-without-count", "rresident,offload-all", "has no *COUNT"},
      {"place-0-blocks", "rresident*0,offload-all", "asks for \"0\" blocks"},
      {"place-too-many-blocks", "rresident*13,offload-all", "where 12 are left"},
      {"place-minus", "rresident*-1,offload-all", "asks for \"-1\" blocks"},
      {"place-2^64", "rresident*18446744073709551617,offload-all", "where 12 are left"},
      {"place-endless-number", "rresident*" + std::string(100'000, '9') + ",offload-all",
       "where 12 are left"},
      {"place-of-too-few", "rresident*11", "it is about 11 blocks"},
      {"place-order", "roffload-all*11,resident", "the order is resident"},

      {"accepted-split", "p3,4,4,1", ""},
      {"accepted-split-blocks", "pblocks", ""},
      {"accepted-split-parameters", "pparameters", ""},
      {"split-time", "ptime", "is measured when a run starts"},
      {"split-empty", "p", "it must be blocks"},
      {"split-comma", "p3,4,4,1,", "it must be blocks"},
      {"split-0", "p0,4,4,4", "each at least 1"},
      {"split-minus", "p-1,5,4,4", "each at least 1"},
      {"split-3-stages", "p4,4,4", "has 3 stages with 12 blocks"},
      {"split-13-blocks", "p4,4,4,1", "has 4 stages with 13 blocks"},
      {"split-2^64", "p18446744073709551617,4,4,1", "it must be blocks"},
      {"split-unseen", "p" + unseen, "it must be blocks"},
      {"split-endless", "p" + std::string(100'000, '1'), "it must be blocks"},
      {"split-many",
       "p1" +
           [] {
             std::string more;
             for (int i = 0; i < 10'000; ++i)
               more += ",1";
             return more;
           }(),
       "has 10001 stages"},

      {"accepted-fault", "irank=1,op=42,kind=stop", ""},
      {"accepted-fault-other-order", "ikind=slow,rank=0,op=0", ""},
      {"accepted-no-fault", "i", ""},
      {"fault-without-kind", "irank=1,op=42", "kind is missing"},
      {"fault-rank-twice", "irank=1,rank=2,op=42,kind=stop", "given twice"},
      {"fault-unknown-key", "irank=1,op=42,kind=stop,when=1", "'when' is unknown"},
      {"fault-unknown-kind", "irank=1,op=42,kind=halt", "no kind 'halt'"},
      {"fault-kind-none", "irank=1,op=42,kind=none", "no kind 'none'"},
      {"fault-empty-kind", "irank=1,op=42,kind=", "no kind ''"},
      {"fault-comma-at-end", "irank=1,op=42,kind=stop,", "is unknown"},
      {"fault-minus", "irank=-1,op=42,kind=stop", "'-1' is not a number"},
      {"fault-2^64", "irank=1,op=18446744073709551616,kind=stop", "is not a number"},
      {"fault-2^32", "irank=4294967296,op=1,kind=stop", "is not a number"},
      {"fault-unseen", "i" + unseen + "=" + unseen, "is unknown"},
      {"fault-endless", "irank=" + std::string(100'000, '1'), "is not a number"},

      {"accepted-ids", "t1 2 3", ""},
      {"accepted-ids-blanks", "t  50256\n0\t", ""},
      {"accepted-no-ids", "t", ""},
      {"ids-comma", "t1,2", "is not a token id"},
      {"ids-text", "tabc", "is not a token id"},
      {"ids-minus", "t1 -1", "is not a token id"},
      {"ids-plus", "t+1", "is not a token id"},
      {"ids-2^31", "t2147483648", "is not a token id"},
      {"ids-hexadecimal", "t0x10", "is not a token id"},
      {"ids-fraction", "t1.5", "is not a token id"},
      {"ids-unseen", "t" + unseen, "is not a token id"},
      {"ids-endless", "t" + std::string(100'000, '9'), "is not a token id"},

      {"accepted-steps", "s500", ""},
      {"accepted-time", "s90min", ""},
      {"accepted-never", "s0", ""},
      {"cadence-auto", "sauto", "--save-every"},
      {"cadence-empty", "s", "--save-every"},
      {"cadence-no-time", "s0s", "--save-every"},
      {"cadence-other-unit", "s3days", "--save-every"},
      {"cadence-minus", "s-1", "--save-every"},
      {"cadence-2^41", "s2199023255552", "--save-every"},
      {"cadence-unseen", "s1" + unseen, "--save-every"},
  };
}

}  // namespace sluice::fuzz
