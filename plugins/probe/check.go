package probe

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	controlplanev1 "github.com/dodona-project/dodona/proto/controlplane/v1"
	pluginv1 "github.com/dodona-project/dodona/proto/plugin/v1"
	"github.com/dodona-project/dodona/sdk/plugin/line"
)

// fault is why an answer is refused. reason is a label of a metric.
type fault struct{ reason, detail string }

func refuse(reason, format string, args ...any) *fault {
	return &fault{reason: reason, detail: fmt.Sprintf(format, args...)}
}

// The reasons, each with its rows in the tests.
const (
	reasonResult     = "result"
	reasonLatency    = "latency"
	reasonLate       = "late_success"
	reasonErrorClass = "error_class"
	reasonDetail     = "detail"
	reasonEgressIP   = "egress_ip"
	reasonStatus     = "status"
	reasonUnexpected = "unexpected_status"
)

const (
	success       = controlplanev1.HealthObservation_RESULT_SUCCESS
	failure       = controlplanev1.HealthObservation_RESULT_FAILURE
	notConclusive = controlplanev1.HealthObservation_RESULT_INCONCLUSIVE

	basic       = controlplanev1.CheckLevel_CHECK_LEVEL_BASIC
	egress      = controlplanev1.CheckLevel_CHECK_LEVEL_EGRESS
	targetLevel = controlplanev1.CheckLevel_CHECK_LEVEL_TARGET

	unclassified = controlplanev1.ErrorClass_ERROR_CLASS_UNSPECIFIED
)

// onTheWay is what the way to the plugin and back may add, on a busy machine,
// before a success counts as one after the timeout.
const onTheWay = Slack / 2

// check turns an answer into an observation, or says why not. took is how long
// the host itself waited for it. The answer may be anything that the wire can
// carry.
func check(req *pluginv1.CheckRequest, r *pluginv1.CheckReply, took time.Duration) (Observation, *fault) {
	o := Observation{Result: r.GetResult(), ErrorClass: r.GetErrorClass(), Detail: r.GetDetail(), Status: r.GetStatus()}
	if o.Result != success && o.Result != failure && o.Result != notConclusive {
		return Observation{}, refuse(reasonResult, "result is %d: allowed are SUCCESS, FAILURE and INCONCLUSIVE", o.Result)
	}
	var bad *fault
	if o.Latency, bad = latency(req, r, took); bad != nil {
		return Observation{}, bad
	}
	if bad := checkClass(r); bad != nil {
		return Observation{}, bad
	}
	switch {
	case len(o.Detail) > MaxDetail:
		return Observation{}, refuse(reasonDetail, "detail has %d bytes: allowed are at most %d", len(o.Detail), MaxDetail)
	case !line.Is(o.Detail):
		return Observation{}, refuse(reasonDetail, "detail is not one line of printable text")
	}
	if o.EgressIP, bad = egressIP(req, r); bad != nil {
		return Observation{}, bad
	}
	if bad := checkStatus(req, r); bad != nil {
		return Observation{}, bad
	}
	return o, nil
}

// latency is what the plugin measured. A success is never later than the
// timeout, by the plugin's clock or by the host's.
func latency(req *pluginv1.CheckRequest, r *pluginv1.CheckReply, took time.Duration) (time.Duration, *fault) {
	timeout := req.GetTimeout().AsDuration()
	d := r.GetLatency()
	if d == nil {
		if r.GetResult() == notConclusive {
			return 0, nil
		}
		return 0, refuse(reasonLatency, "latency is absent: allowed are 0 to %v", timeout)
	}
	measured := d.AsDuration()
	switch {
	case d.CheckValid() != nil || measured < 0 || measured > timeout+Slack:
		return 0, refuse(reasonLatency, "latency is %s: allowed are 0 to %v, the timeout", durationText(d), timeout)
	case r.GetResult() != success:
		return measured, nil
	case measured > timeout:
		return 0, refuse(reasonLate, "success after %v: the timeout is %v", measured, timeout)
	case took > timeout+onTheWay:
		return 0, refuse(reasonLate, "success that came after %v: the timeout is %v", took.Round(time.Millisecond), timeout)
	}
	return measured, nil
}

func checkClass(r *pluginv1.CheckReply) *fault {
	class := r.GetErrorClass()
	_, known := controlplanev1.ErrorClass_name[int32(class)]
	switch {
	case !known:
		return refuse(reasonErrorClass, "error_class is %d: it is not one that exists", class)
	case r.GetResult() == success && class != unclassified:
		return refuse(reasonErrorClass, "error_class is %s with a success: allowed is none", class)
	case r.GetResult() == failure && class == unclassified:
		return refuse(reasonErrorClass, "error_class is absent with a failure: say which")
	}
	return nil
}

// egressIP reads the address at which a proxy's traffic leaves. Only an EGRESS
// check sees one, and it has seen nothing without one.
func egressIP(req *pluginv1.CheckRequest, r *pluginv1.CheckReply) (netip.Addr, *fault) {
	text := r.GetEgressIp()
	if text == "" {
		if req.GetLevel() == egress && r.GetResult() == success {
			return netip.Addr{}, refuse(reasonEgressIP, "egress_ip is absent with a success of an EGRESS check")
		}
		return netip.Addr{}, nil
	}
	if req.GetLevel() != egress {
		return netip.Addr{}, refuse(reasonEgressIP, "egress_ip is set: it belongs to EGRESS checks")
	}
	ip, err := netip.ParseAddr(text)
	if err != nil || ip.Zone() != "" || ip.IsUnspecified() || ip.IsMulticast() {
		return netip.Addr{}, refuse(reasonEgressIP, "egress_ip is %.64q: allowed is the IP address of one machine, without a zone", text)
	}
	return ip.Unmap(), nil
}

// checkStatus refuses a status that cannot be, and a success with one that was
// not asked for.
func checkStatus(req *pluginv1.CheckRequest, r *pluginv1.CheckReply) *fault {
	status := r.GetStatus()
	if status != 0 && !isStatus(status) {
		return refuse(reasonStatus, "status is %d: allowed are 100 to 599, and 0 for none", status)
	}
	if r.GetResult() != success {
		return nil
	}
	expect := req.GetExpectStatus()
	asked := len(expect) > 0 || req.GetLevel() == targetLevel && req.GetProxy() != nil
	switch {
	case status == 0 && asked:
		return refuse(reasonUnexpected, "success without a status: the request asks for one")
	case status == 0:
		return nil
	case len(expect) > 0 && !slices.Contains(expect, status), len(expect) == 0 && (status < 200 || status > 399):
		return refuse(reasonUnexpected, "success with status %d: the request expects %s", status, expected(expect))
	}
	return nil
}

func expected(codes []uint32) string {
	if len(codes) == 0 {
		return "200 to 399"
	}
	return strings.Trim(fmt.Sprint(codes), "[]")
}

func isStatus(code uint32) bool { return code >= 100 && code <= 599 }

// durationText is a duration for people, also one out of range.
func durationText(d *durationpb.Duration) string {
	switch {
	case d == nil:
		return "absent"
	case d.CheckValid() != nil:
		return "not a duration"
	}
	return d.AsDuration().String()
}
