package demo

import (
	"context"
	"fmt"
	"path/filepath"
	"sync"
	"time"

	"google.golang.org/grpc"

	"github.com/dodona-project/dodona/host/loopback"
	"github.com/dodona-project/dodona/host/spawn"
	donav1 "github.com/dodona-project/dodona/proto/dona/v1"
)

// stage is everything that is running, and what was seen of it.
type stage struct {
	options Options
	dir     string
	story   *story
	spawn   *spawn.Spawner
	seen    *observer

	ports   ports
	host    *spawn.Child
	conn    *grpc.ClientConn
	control donav1.ControlPlaneClient
	admin   donav1.HostAdminClient
	traffic *traffic
	metrics *metrics

	stopTraffic context.CancelFunc
	background  sync.WaitGroup
	stopWatch   context.CancelFunc

	plugins map[int]string // every plugin process seen, by pid
	facts   facts
}

// ports are the host's, the same after its restart.
type ports struct{ grpc, bootstrap, http string }

// freePorts are ports for the host, free again when it comes back.
func freePorts() (ports, error) {
	var addresses [3]string
	for i := range addresses {
		var err error
		if addresses[i], err = loopback.Free(); err != nil {
			return ports{}, fmt.Errorf("no free port on 127.0.0.1: %w", err)
		}
	}
	return ports{addresses[0], addresses[1], addresses[2]}, nil
}

// startHost starts the host and waits until it answers.
func (s *stage) startHost(ctx context.Context) error {
	log, err := s.logFile("host")
	if err != nil {
		return err
	}
	s.host, err = s.spawn.Start("dona-host", s.options.Host, []string{
		"--dev", "--data-dir", filepath.Join(s.dir, "data"),
		"--grpc-listen", s.ports.grpc, "--bootstrap-listen", s.ports.bootstrap, "--http-listen", s.ports.http,
	}, []string{"DONA_PLUGINS_BACKOFF_MIN=" + pluginAway.String(), "DONA_PLUGINS_BACKOFF_MAX=" + (pluginAway + time.Second).String()}, log)
	if err != nil {
		return err
	}
	limit, cancel := context.WithTimeout(ctx, 20*time.Second)
	defer cancel()
	for {
		ask, stop := context.WithTimeout(limit, time.Second)
		_, err := s.control.ListServices(ask, &donav1.ListServicesRequest{})
		stop()
		if err == nil {
			return nil
		}
		if dead, how := s.host.Ended(); dead {
			return fmt.Errorf("the host ended (%s); %s", how, spawn.Tail(filepath.Join(s.dir, "host.log")))
		}
		select {
		case <-limit.Done():
			return fmt.Errorf("the host does not answer: %w", err)
		case <-time.After(50 * time.Millisecond):
		}
	}
}

// startVariant starts a variant's process; its endpoints appear when they are
// registered.
func (s *stage) startVariant(name string, errorPercent int) error {
	log, err := s.logFile("service-" + name)
	if err != nil {
		return err
	}
	_, err = s.spawn.Start("variant "+name, s.options.Self, []string{
		"demo-service", "--host", s.ports.grpc, "--service", service, "--variant", name,
		"--error-percent", fmt.Sprint(errorPercent),
	}, nil, log)
	return err
}

// endpoints waits until n endpoints of a variant are in the snapshot.
func (s *stage) endpoints(ctx context.Context, variant string, n int) error {
	_, err := s.seen.until(ctx, 20*time.Second, fmt.Sprintf("%d endpoints of %s", n, variant), func(r *donav1.StatusReply) bool {
		return endpointsOf(r, variant) == n
	}, s.hostDied)
	return err
}

func endpointsOf(r *donav1.StatusReply, variant string) (n int) {
	for _, e := range r.GetConfig().GetEndpoints() {
		if e.GetVariant() == variant && e.GetLbWeight() > 0 {
			n++
		}
	}
	return n
}

// hostDied ends a wait that a host which ended by itself will never fulfil.
func (s *stage) hostDied() error {
	if dead, how := s.host.Ended(); dead {
		return fmt.Errorf("the host ended by itself (%s); %s", how, spawn.Tail(filepath.Join(s.dir, "host.log")))
	}
	return nil
}

// plugin looks up a plugin, and remembers the processes of all.
func (s *stage) plugin(ctx context.Context, kind, name string) (*donav1.PluginStatus, error) {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	reply, err := s.admin.ListPlugins(ctx, &donav1.ListPluginsRequest{})
	if err != nil {
		return nil, fmt.Errorf("list of plugins: %w", err)
	}
	var found *donav1.PluginStatus
	for _, p := range reply.GetPlugins() {
		if p.GetPid() > 0 {
			s.plugins[int(p.GetPid())] = p.GetKind() + " " + p.GetName()
		}
		if p.GetKind() == kind && p.GetName() == name {
			found = p
		}
	}
	if found == nil {
		return nil, fmt.Errorf("the host has no %s plugin %s", kind, name)
	}
	return found, nil
}

// end brings everything home and says what did not go. With gently, children are
// asked to end and what they leave undone counts.
func (s *stage) end(gently bool) (problems []string) {
	if s.stopTraffic != nil {
		s.stopTraffic()
	}
	if !gently {
		s.spawn.KillAll()
	}
	if s.stopWatch != nil {
		s.stopWatch()
	}
	s.background.Wait()
	if s.traffic != nil && gently {
		if err := s.traffic.client.Close(); err != nil {
			problems = append(problems, "the client could not deliver its reports: "+err.Error())
		}
	}
	if gently {
		_, err := s.plugin(context.Background(), "analysis", analysisPlugin)
		if err != nil {
			problems = append(problems, err.Error())
		}
	}
	for _, name := range s.spawn.StopAll(stopIn) {
		problems = append(problems, fmt.Sprintf("%s did not end within %s and was killed", name, stopIn))
	}
	s.spawn.Close()
	if s.metrics != nil {
		s.metrics.close()
	}
	if s.conn != nil {
		_ = s.conn.Close()
	}
	return append(problems, s.orphans()...)
}

// orphans waits for the plugins' processes to follow their host, and kills and
// names those that do not.
func (s *stage) orphans() (left []string) {
	limit := time.Now().Add(stopIn)
	for pid, name := range s.plugins {
		for spawn.Alive(pid) && time.Now().Before(limit) {
			time.Sleep(20 * time.Millisecond)
		}
		if spawn.Alive(pid) {
			left = append(left, fmt.Sprintf("the plugin %s (pid %d) outlived its host and was killed", name, pid))
			_ = spawn.Kill(pid)
		}
	}
	return left
}
