-- Planted in schema public by a role that may create there: for every built-in named in $names, functions of the same name
-- whose argument types fit better; operators; relations and types of the same name. Each counts its calls in a sequence,
-- which no rollback takes back, and fails.
create function public.hostile(p_name pg_catalog.text) returns void language plpgsql
set search_path = pg_catalog, pg_temp as $$
begin
    perform nextval(format('public.%I', 'hit ' || p_name));
    raise 'hostile % was called', p_name;
end $$;

do $do$
declare
    v_types text[] := '{smallint,integer,bigint,numeric,real,double precision,text,varchar,name,"char",boolean,uuid,jsonb,json,bytea,timestamptz,interval,xid8,oid,text[],bigint[],integer[],uuid[]}';
    v_name text;
    v_signature record;
    v_arguments text;
    v_body text;
    v_left text;
    v_right text;
    v_operator text;
begin
    foreach v_name in array $names loop
        execute format('create sequence public.%I', 'hit ' || v_name);
        v_body := format('begin perform public.hostile(%L); return null; end', v_name);
        for v_signature in
            select distinct s.types, s.names, p.return_type
            from (select p.oid, p.proargnames, p.pronargs, p.pronargdefaults,
                         array(select format_type(t, null) from unnest(p.proargtypes) with ordinality a (t, n) order by n) as types,
                         case when t.typtype = 'p' then 'text' else format_type(p.prorettype, null) end as return_type
                  from pg_proc p join pg_type t on t.oid = p.prorettype
                  where p.pronamespace = 'pg_catalog'::regnamespace and p.proname = v_name) p
            cross join lateral (
                -- As many leading arguments as a call may give, and each optional one alone, by its name.
                select p.types[1:n] as types, p.proargnames[1:n] as names
                from generate_series((p.pronargs - p.pronargdefaults)::int, p.pronargs::int) n
                union all
                select p.types[n:n], p.proargnames[n:n]
                from generate_series(1, p.pronargs::int) n where p.pronargdefaults > 0) s
            where cardinality(s.types) <= 4
        loop
            for v_arguments in
                select string_agg(coalesce(quote_ident(nullif(v_signature.names[a.n], '')) || ' ', '')
                                  || case when a.n = r.place or r.place = 0 then r.type else a.type end, ', ' order by a.n)
                from (select place, type from generate_series(0, cardinality(v_signature.types)) place, unnest(v_types) type
                      union all select -1, null) r
                left join unnest(v_signature.types) with ordinality a (type, n) on true
                group by r.place, r.type
            loop
                begin
                    execute format('create function public.%I(%s) returns %s language plpgsql as %L',
                                   v_name, v_arguments, v_signature.return_type, v_body);
                exception when others then null; -- There is one already, or PL/pgSQL has no such arguments.
                end;
            end loop;
        end loop;
    end loop;

    create sequence public."hit operator";
    foreach v_left in array v_types loop
        foreach v_right in array v_types loop
            execute format('create function public.hostile_operator(%s, %s) returns boolean language plpgsql as %L',
                           v_left, v_right, $$begin perform public.hostile('operator'); return null; end$$);
            foreach v_operator in array '{=,<>,<,>,<=,>=,+,-,*,/,||,->,->>,&,|,<<,>>,~,@>,?}'::text[] loop
                execute format('create operator public.%s (leftarg = %s, rightarg = %s, function = public.hostile_operator)',
                               v_operator, v_left, v_right);
            end loop;
        end loop;
    end loop;

    for v_name in
        select c.relname from pg_class c
        where c.relnamespace = 'pg_catalog'::regnamespace and c.relkind in ('r', 'v') and c.relname = any ($relations)
    loop
        execute format('create table public.%I ()', v_name);
    end loop;
    foreach v_name in array '{uuid,text,int4,int8,jsonb,timestamptz,bool,bytea,xid8,interval,regclass}'::text[] loop
        execute format('create type public.%I as enum ()', v_name);
    end loop;
end $do$;
