// Command first is a plugin of the first wire version, frozen: wire.binpb beside it are
// the messages and services as they were then, the handshake and the answers are
// written down here, and nothing of the SDK or of the generated code is used. Hosts
// have to go on understanding it: neither file is changed, whatever becomes of the
// wire. (As built with the go-plugin and gRPC of today; those promise their own.)
//
// As the tests' other plugin it finds its name and version in the last line of its
// file. "protocol=N" there has it claim another wire version.
package main

import (
	"context"
	_ "embed"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	goplugin "github.com/hashicorp/go-plugin"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protodesc"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
	"google.golang.org/protobuf/types/descriptorpb"
	"google.golang.org/protobuf/types/dynamicpb"
)

//go:embed wire.binpb
var wire []byte

const (
	cookieKey   = "DONA_PLUGIN"
	cookieValue = "dona-plugin-v1"
	pluginSet   = "dona"
)

var services = []string{"plugin.v1.Lifecycle", "plugin.v1.Analysis", "plugin.v1.Probe", "plugin.v1.Strategy"}

// answers are what it says to each method, in the JSON of that time.
var answers = map[string]string{
	"Describe":    `{"name":"NAME","version":"VERSION","kind":"KIND","summary":"of the first version","configSchema":"{\"type\":\"object\",\"properties\":{\"word\":{\"type\":\"string\"}},\"additionalProperties\":false}","capabilities":["verdict"],"maxConcurrency":7,"sdkVersion":"0.1.0"}`,
	"Configure":   `{}`,
	"WatchHealth": `{"state":"STATE_HEALTHY"}`,
	"Drain":       `{}`,
	"Evaluate":    `{"verdict":"VERDICT_PASS","value":0.25,"hasValue":true,"detail":"asked about SERVICE","evidence":"ZXZpZGVuY2U=","state":"c3RhdGU=","retryAfter":"1.5s"}`,
	"Check":       `{"result":"RESULT_SUCCESS","latency":"0.005s","detail":"asked about ENDPOINT_ADDRESS","status":200}`,
	"Compile":     `{"plan":{"algorithm":"ALGORITHM_ROUND_ROBIN"},"refreshAfter":"30s"}`,
}

type first struct {
	goplugin.NetRPCUnsupportedPlugin
	files  *protoregistry.Files
	fields map[string]string // that answers have, by their placeholder
}

func main() {
	name, version, protocol, err := stamp()
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	var set descriptorpb.FileDescriptorSet
	if err := proto.Unmarshal(wire, &set); err != nil {
		panic(err)
	}
	files, err := protodesc.NewFiles(&set)
	if err != nil {
		panic(err)
	}
	kind, _, _ := strings.Cut(name, "-")
	f := &first{files: files, fields: map[string]string{"NAME": name, "VERSION": version, "KIND": "KIND_" + strings.ToUpper(kind)}}
	if len(os.Args) > 1 && os.Args[1] == "--describe" {
		fmt.Println(f.fill(answers["Describe"], nil))
		return
	}
	goplugin.Serve(&goplugin.ServeConfig{
		HandshakeConfig:  goplugin.HandshakeConfig{MagicCookieKey: cookieKey, MagicCookieValue: cookieValue},
		VersionedPlugins: map[int]goplugin.PluginSet{protocol: {pluginSet: f}},
		GRPCServer:       goplugin.DefaultGRPCServer,
	})
}

// fill puts what is known into an answer's placeholders: the fields of the plugin, and
// those of the request.
func (f *first) fill(answer string, req *dynamicpb.Message) string {
	for k, v := range f.fields {
		answer = strings.ReplaceAll(answer, k, v)
	}
	if req != nil {
		req.Range(func(fd protoreflect.FieldDescriptor, v protoreflect.Value) bool {
			if fd.Kind() == protoreflect.StringKind && !fd.IsList() {
				answer = strings.ReplaceAll(answer, strings.ToUpper(string(fd.Name())), v.String())
			}
			return true
		})
	}
	return answer
}

func (f *first) GRPCServer(_ *goplugin.GRPCBroker, server *grpc.Server) error {
	for _, name := range services {
		d, err := f.files.FindDescriptorByName(protoreflect.FullName(name))
		if err != nil {
			return err
		}
		desc := &grpc.ServiceDesc{ServiceName: name, HandlerType: (*any)(nil)}
		methods := d.(protoreflect.ServiceDescriptor).Methods()
		for i := range methods.Len() {
			m := methods.Get(i)
			if m.IsStreamingServer() {
				desc.Streams = append(desc.Streams, grpc.StreamDesc{StreamName: string(m.Name()), ServerStreams: true, Handler: func(_ any, s grpc.ServerStream) error {
					req := dynamicpb.NewMessage(m.Input())
					if err := s.RecvMsg(req); err != nil {
						return err
					}
					reply, err := f.answer(m, req)
					if err == nil {
						err = s.SendMsg(reply)
					}
					if err != nil {
						return err
					}
					<-s.Context().Done()
					return s.Context().Err()
				}})
				continue
			}
			desc.Methods = append(desc.Methods, grpc.MethodDesc{MethodName: string(m.Name()), Handler: func(_ any, _ context.Context, decode func(any) error, _ grpc.UnaryServerInterceptor) (any, error) {
				req := dynamicpb.NewMessage(m.Input())
				if err := decode(req); err != nil {
					return nil, err
				}
				if m.Name() == "Drain" {
					time.AfterFunc(100*time.Millisecond, func() { os.Exit(0) })
				}
				return f.answer(m, req)
			}})
		}
		server.RegisterService(desc, nil)
	}
	return nil
}

func (f *first) GRPCClient(context.Context, *goplugin.GRPCBroker, *grpc.ClientConn) (any, error) {
	return nil, fmt.Errorf("this side serves")
}

// answer answers a request of the first version. One that lacks what hosts of that
// version always said is refused.
func (f *first) answer(m protoreflect.MethodDescriptor, req *dynamicpb.Message) (proto.Message, error) {
	for _, need := range map[protoreflect.Name][]protoreflect.Name{
		"Evaluate": {"service", "query"}, "Check": {"endpoint_address", "timeout"}, "Compile": {"scope", "candidates"}, "Configure": {"instance_id"},
	}[m.Name()] {
		if !req.Has(m.Input().Fields().ByName(need)) {
			return nil, status.Errorf(codes.InvalidArgument, "%s without %s", m.Name(), need)
		}
	}
	reply := dynamicpb.NewMessage(m.Output())
	text := f.fill(answers[string(m.Name())], req)
	if err := (protojson.UnmarshalOptions{Resolver: dynamicpb.NewTypes(f.files)}).Unmarshal([]byte(text), reply); err != nil {
		return nil, status.Error(codes.Internal, err.Error())
	}
	return reply, nil
}

func stamp() (name, version string, protocol int, err error) {
	text, err := os.ReadFile("/proc/self/exe")
	if err != nil {
		return "", "", 0, err
	}
	line := string(text[max(0, len(text)-512):])
	words := strings.Fields(line[strings.LastIndex(line, "\nDONA ")+1:])
	if len(words) < 3 || words[0] != "DONA" {
		return "", "", 0, fmt.Errorf("this program has no stamp: it is for tests")
	}
	protocol = 1
	if len(words) > 3 {
		n, ok := strings.CutPrefix(words[3], "protocol=")
		if protocol, err = strconv.Atoi(n); !ok || err != nil {
			return "", "", 0, fmt.Errorf("the stamp says %q: allowed is protocol=N", words[3])
		}
	}
	return words[1], words[2], protocol, nil
}
