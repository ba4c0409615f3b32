package builtin_test

import (
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/dodona-project/dodona/plugins"
	"github.com/dodona-project/dodona/plugins/probe"
	controlplanev1 "github.com/dodona-project/dodona/proto/controlplane/v1"
	pluginv1 "github.com/dodona-project/dodona/proto/plugin/v1"
	"github.com/dodona-project/dodona/sdk/worker/proxytest"
)

// The probe of proxies as a process: what it answers is what the host takes, at each
// level.
func TestProxyProbe(t *testing.T) {
	h := startHost(t)
	await(t, h, plugins.KindProbe, "proxy")
	site := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte(`{"ip": "203.0.113.7"}`)) }))
	defer site.Close()
	for _, protocol := range []controlplanev1.Proxy_Protocol{controlplanev1.Proxy_PROTOCOL_HTTP, controlplanev1.Proxy_PROTOCOL_HTTPS, controlplanev1.Proxy_PROTOCOL_SOCKS5} {
		s := proxytest.Start(t, proxytest.Options{Protocol: protocol, Username: "u", Password: "p", Hosts: map[string]string{"ip.example:80": site.Listener.Addr().String()}})
		for level, url := range map[controlplanev1.CheckLevel]string{
			controlplanev1.CheckLevel_CHECK_LEVEL_BASIC:  "",
			controlplanev1.CheckLevel_CHECK_LEVEL_EGRESS: "http://ip.example/",
			controlplanev1.CheckLevel_CHECK_LEVEL_TARGET: "http://ip.example/",
		} {
			o, err := probe.New(h).Check(t.Context(), "proxy", config(t, map[string]any{"allow": []any{"loopback"}, "proxy_tls": map[string]any{"skip_verify": true}}), &pluginv1.CheckRequest{
				Proxy: s.Proxy(), Credential: s.Credential(), Level: level, Url: url, Timeout: durationpb.New(5 * time.Second),
			})
			if err != nil || o.Result != controlplanev1.HealthObservation_RESULT_SUCCESS {
				t.Errorf("%v %v: %+v, %v", protocol, level, o, err)
			}
			if egress := level == controlplanev1.CheckLevel_CHECK_LEVEL_EGRESS; egress != o.EgressIP.IsValid() {
				t.Errorf("%v %v: it leaves at %v", protocol, level, o.EgressIP)
			}
		}
	}
}
