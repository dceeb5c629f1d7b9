--- Reading one entry, and taking its text along.
local client = require("dsh.client")
local say = require("dsh.say")
local text = require("dsh.text")

local M = {}

local MOST = 256 * 1024 -- bytes of an entry to show

---@param session_id string
---@param entry_id string
---@param max_bytes integer
---@param use fun(entry: table)
local function with_entry(session_id, entry_id, max_bytes, use)
  local params = { sessionId = session_id, ids = { entry_id }, maxBytes = max_bytes }
  client.request("session/entries", params, function(err, result)
    if err then
      say.error(err)
    elseif result.entries[1] then
      use(result.entries[1])
    else
      say.warn("this entry is not in the session any more")
    end
  end)
end

--- Show an entry whole, in a float or a split, as the option `preview` says.
---@param session_id string
---@param entry_id string
function M.open(session_id, entry_id)
  with_entry(session_id, entry_id, MOST, function(entry)
    local scratch = require("dsh.scratch")
    local who = type(entry.message) == "table" and entry.message.role or entry.type
    local buf = scratch.buffer({
      name = ("dsh-entry://%s/%s"):format(session_id, entry_id),
      session_id = session_id,
      entry_id = entry_id,
      syntax = (who == "user" or who == "assistant") and "markdown" or nil,
    }, require("dsh.entry").lines(entry))
    if require("dsh.config").get().preview == "split" then
      scratch.split(buf, "belowright")
    else
      scratch.float(buf, text.line(("%s · %s"):format(who, entry_id)))
    end
  end)
end

--- Copy what an entry says into the unnamed register, and to the clipboard where there is one.
---@param session_id string
---@param entry_id string
function M.yank(session_id, entry_id)
  with_entry(session_id, entry_id, 64 * 1024 * 1024, function(entry)
    local lines = require("dsh.entry").lines(entry)
    M.copy(lines)
    say.info(text.plural(#lines, "line", "lines") .. " yanked")
  end)
end

---@param lines string[]
function M.copy(lines)
  vim.fn.setreg('"', lines)
  if vim.fn.has("clipboard") == 1 then
    vim.fn.setreg("+", lines)
  end
end

return M
